"""What is wrong with a page as it stands in the browser, found by measuring it."""

from __future__ import annotations

import re
from typing import Any

LAYOUT = """
() => {
  const root = document.querySelector("#ti_fix_root"), faults = [];
  const seen = (e) => { const b = e.getBoundingClientRect(); return b.width > 1 && b.height > 1 &&
    getComputedStyle(e).visibility !== "hidden" && e.checkVisibility?.({opacityProperty: true}) !== false; };
  const called = (e) => e.id || e.getAttribute("aria-label") || e.className?.toString().slice(0, 40) || e.tagName;
  const scrolls = (e) => { for (let p = e.parentElement; p && p !== root; p = p.parentElement) {
    if (/(auto|scroll|hidden)/.test(getComputedStyle(p).overflowX)) return true; } return false; };
  const page = document.documentElement;
  const beyond = page.scrollWidth - window.innerWidth;
  const edge = root.getBoundingClientRect(), alone = !document.querySelector("#txt2img_generate");
  if (beyond > 1 && (alone || edge.right > window.innerWidth + 1)) faults.push(`the page is ${beyond} px too wide`);
  for (const e of root.querySelectorAll("*")) {
    if (!seen(e) || scrolls(e)) continue;
    const box = e.getBoundingClientRect();
    if (box.right > edge.right + 2 || box.left < edge.left - 2) faults.push(`${called(e)} stands out of the page`);
  }
  const pressed = [...root.querySelectorAll("button, input, textarea, select, summary, a[href]")].filter(seen);
  for (const e of pressed) {
    const id = e.id && document.querySelector(`label[for="${CSS.escape(e.id)}"]`);
    const text = e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.innerText || e.title ||
      e.placeholder || id?.innerText || e.closest("label")?.innerText || "";
    const field = e.closest('[id^="ti_fix_"]');
    const labelled = ["range", "file"].includes(e.type) || field?.querySelector("label, .label-wrap, span");
    if (!text.trim() && !labelled) {
      faults.push(`${called(e)} has no name that a screen reader could say`);
    }
  }
  const own = pressed.filter((e) => e.matches("button, summary, a") && !scrolls(e));
  for (let i = 0; i < own.length; i++) for (let j = 0; j < i; j++) {
    if (own[i].contains(own[j]) || own[j].contains(own[i])) continue;
    const a = own[i].getBoundingClientRect(), b = own[j].getBoundingClientRect();
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 3 && high > 3) faults.push(`${called(own[i])} lies over ${called(own[j])}`);
  }
  for (const e of own) {
    const cut = e.scrollWidth > e.clientWidth + 2 && getComputedStyle(e).overflow === "visible";
    if (cut && e.matches("button:not(.label-wrap)")) faults.push(`the text of ${called(e)} does not fit`);
  }
  for (const e of root.querySelectorAll("*")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()), style = getComputedStyle(e);
    if (!text || !seen(e) || e.closest(".hear, svg") || e.matches("textarea, input, option")) continue;
    const hides = /(hidden|clip)/.test(style.overflowX) && style.textOverflow !== "ellipsis";
    if (hides && e.scrollWidth > e.clientWidth + 2) faults.push(`"${e.innerText.trim().slice(0, 30)}" is cut off`);
  }
  return [...new Set(faults)];
}
"""

CONTRAST = """
() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (let p = e; p; p = p.parentElement) {
    const c = numbers(getComputedStyle(p).backgroundColor);
    if (getComputedStyle(p).backgroundImage !== "none") return null;
    if (c.length === 4 && c[3] > 0.05 && c[3] < 0.9) return null;  // a mix that is not measured here
    if (c.length === 3 || c[3] >= 0.9) return c; } return [255, 255, 255]; };
  const faults = [];
  for (const e of document.querySelectorAll("#ti_fix_root *")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const box = e.getBoundingClientRect();
    if (!text || box.width < 2 || box.height < 2 || e.closest("svg, :disabled") || e.matches("option")) continue;
    const style = getComputedStyle(e), back = behind(e);
    if (!back || Number(style.opacity) < 1 || style.color.startsWith("color(")) continue;
    const [a, b] = [light(numbers(style.color)), light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 2.2) faults.push(`"${e.innerText.trim().slice(0, 30)}" can hardly be read`);
  }
  return [...new Set(faults)];
}
"""
"""Text that has less than 2.2 times the contrast of its ground: invisible in one of the themes."""

HARMLESS = (
    "net::ERR_FAILED",  # what leaves the page's own address is refused here: Gradio asks for a script elsewhere
    "net::ERR_BLOCKED",
    "Loading the script 'https://cdnjs",  # that script, refused by our own page
    "signal is aborted",  # Gradio 4 ends the stream of an event so
    "fonts.g",
    "favicon",
)

OF_WEBUIS = (
    # seen in AUTOMATIC1111 1.10.1 without ti_fix: its own events answer with more values than there are fields
    ("Cannot read properties of undefined (reading 'props')", r"/assets/Blocks-\w+\.js:\d+:\d+\n\s*at Array\.forEach"),
    # seen there too: its shortcuts look for the Generate button of the open tab, and few tabs have one
    ("Cannot read properties of null (reading 'style')", r"^TypeError: .*\n\s*at .*/file=script\.js\?"),
)
"""Errors of scripts that WebUIs have by themselves: the message, and what its stack holds."""


def of_webui(message: str, stack: str) -> bool:
    """Whether an error of a script is one that a WebUI has without ti_fix as well."""
    return "ti_fix" not in stack and any(message == known and re.search(at, stack) for known, at in OF_WEBUIS)


def serious(message: str) -> bool:
    """Whether a line of the browser's console is a fault."""
    return not any(each in message for each in HARMLESS)


def of_layout(page: Any) -> list[str]:
    """Overflow, overlaps, missing names."""
    return [str(each) for each in page.evaluate(LAYOUT)]


def of_contrast(page: Any) -> list[str]:
    """Text that can hardly be read."""
    return [str(each) for each in page.evaluate(CONTRAST)]
