"""The details of one embedding as HTML: how to call it, what it is, what was noticed, how long its vectors are."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

from ti_fix.embedding import ENCODERS, Finding
from ti_fix.repair import carries, too_long
from ti_fix.repair.on_load import name_in_prompts
from ti_fix.ui import markup
from ti_fix.ui.files_table import vectors
from ti_fix.ui.library import Entry
from ti_fix.ui.words import TEXTS, VERDICTS

PREVIEW_ENDINGS = (".preview.png", ".preview.jpg", ".preview.jpeg", ".preview.webp", ".png", ".jpg", ".jpeg", ".webp")
PREVIEW_BYTES = 32 * 2**20
PREVIEW_PIXELS = 64 * 2**20
HEADROOM = 1.2
"""Height of a chart over its longest bar, so that the line of everyday words stays in sight."""

PREVIEW_SIDE = 192
"""Longest side of the small picture, in pixels."""


def head(entry: Entry) -> str:
    """Name, picture, verdict, and what to write in a prompt."""
    meaning = markup.shown(VERDICTS[entry.verdict][1])
    picture = preview(entry)
    image = f'<img alt="" src="{picture}">' if picture else ""
    return (
        f"<header>{image}<div><h3>{markup.name(entry.trigger)}</h3>{markup.badge(entry.verdict)}<p>{meaning}</p></div>"
        f"</header>{_prompt(entry)}{_go_on(entry)}"
    )


def details(entry: Entry) -> str:
    """What was noticed, how long the vectors are, and what it is."""
    return (
        f'<article aria-label="{markup.shown(entry.trigger)}">{_findings(entry.judged.result.findings)}'
        f"{_lengths(entry)}{_facts(entry)}</article>"
    )


def prompt_text(entry: Entry) -> str:
    """What a prompt must contain to get all of it; empty where nothing can be called."""
    judged = entry.judged
    if too_long(judged) or not judged.result.usable:
        return ""
    unusable = any(f.code in ("prompt-syntax", "keyword") for f in judged.result.findings)
    return judged.aliases[-1] if unusable and judged.aliases else name_in_prompts(judged.trigger, entry.paths[0].stem)


def _prompt(entry: Entry) -> str:
    text = prompt_text(entry)
    if not text:
        return ""
    copy = f'<button type="button" class="step" data-ti-fix-copy="{markup.shown(text)}">{TEXTS["copy"]}</button>'
    add = f'<button type="button" class="step" data-ti-fix-add="{markup.shown(text)}">{TEXTS["add"]}</button>'
    return f'<h4>{TEXTS["in_prompt"]}</h4><div class="prompt"><code>{markup.name(text)}</code>{copy}{add}</div>'


def _go_on(entry: Entry) -> str:
    """Buttons to the pages that can do something with it."""
    judged = entry.judged
    buttons = markup.go_to(TEXTS["to_convert"], "convert", f"take:{entry.id}") if entry.verdict == "convert" else ""
    if judged.result.usable and not carries(judged):
        buttons += markup.go_to(TEXTS["to_evaluate"], "evaluate", f"take:{entry.id}")
    return f'<p class="go_on">{buttons}</p>' if buttons else ""


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return f'<h4>{TEXTS["noticed"]}</h4><p class="fine">{TEXTS["nothing_noticed"]}</p>'
    order = {"error": 0, "warning": 1, "note": 2}
    lines = "".join(_finding(f) for f in sorted(findings, key=lambda f: order[f.severity]))
    return f"<h4>{TEXTS['noticed']}</h4><ul>{lines}</ul>"


def _finding(finding: Finding) -> str:
    done = f"<small><span>{TEXTS['done_about_it']}</span>: {markup.shown(finding.repaired)}</small>"
    told = finding.repaired and finding.repaired not in finding.message
    return f'<li class="{finding.severity}">{markup.shown(finding.message)}{done if told else ""}</li>'


def _lengths(entry: Entry) -> str:
    charts = "".join(_chart(key, lengths) for key, lengths in entry.about["norms"].items() if lengths)
    if not charts:
        return ""
    known = any(ENCODERS[key].typical_norm for key in entry.about["norms"] if key in ENCODERS)
    hint = TEXTS["lengths_hint" if known else "lengths_hint_plain"]
    return f'<h4>{TEXTS["lengths"]}</h4>{charts}<p class="hint">{hint}</p>'


def _chart(key: str, lengths: Sequence[float | None]) -> str:
    encoder = ENCODERS.get(key)
    typical = encoder.typical_norm if encoder else None
    top = HEADROOM * max([each for each in lengths if each is not None] + [typical or 0.0]) or 1.0
    bars = "".join(_bar(number, each, top) for number, each in enumerate(lengths, 1))
    line = f'<u style="bottom:{100 * typical / top:.1f}%"></u>' if typical else ""
    finite = [each for each in lengths if each is not None]
    told = f"{min(finite):.2g} – {max(finite):.2g}" if finite else "–"
    title = markup.shown(encoder.title if encoder else key)
    return (
        f'<figure><figcaption><span>{title}</span><b>{told}</b></figcaption><div class="bars" role="img" '
        f'aria-label="{title}: {told}">{line}{bars}</div></figure>'
    )


def _bar(number: int, length: float | None, top: float) -> str:
    if length is None or not math.isfinite(length):
        return f'<i class="broken" style="height:100%" title="{number}: not a number"></i>'
    return f'<i style="height:{max(1.0, 100 * length / top):.1f}%" title="{number}: {length:.4g}"></i>'


def _facts(entry: Entry) -> str:
    judged = entry.judged
    shapes = entry.about["encoders"] or {}
    sizes = ", ".join(f"{ENCODERS[k].title if k in ENCODERS else k} {n} × {width}" for k, (n, width) in shapes.items())
    count = vectors(entry)
    facts = {
        "made_for": markup.shown(judged.made_for.title) if judged.made_for else f"<span>{TEXTS['unknown']}</span>",
        "vectors": markup.shown(f"{count} ({sizes})" if sizes else count or "–"),
        "layout": markup.shown(judged.parsed.layout or "–"),
        "file": "<br>".join(markup.name(path) for path in entry.paths),
        "size": markup.size(entry.size),
        "also": ", ".join(map(markup.name, judged.aliases)),
    }
    lines = "".join(f"<dt>{TEXTS[key]}</dt><dd>{value}</dd>" for key, value in facts.items() if value)
    return f"<h4>{TEXTS['about']}</h4><dl>{lines}</dl>"


def preview(entry: Entry) -> str:
    """The picture that lies beside an embedding, small, as a data URI; empty where there is none.

    Only of files that really lie inside the folders, within bounds, and only formats that need no outside decoder.
    """
    if not entry.confined or carries(entry.judged):
        return ""
    path = entry.paths[0]
    stem = path.name[: -len(path.suffix)] if path.suffix else path.name
    for candidate in (path, *(path.with_name(stem + ending) for ending in PREVIEW_ENDINGS)):
        if candidate.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp") and candidate.is_file():
            return "" if candidate.is_symlink() else _small(candidate)
    return ""


def _small(path: Path) -> str:
    from PIL import Image

    try:
        if path.stat().st_size > PREVIEW_BYTES:
            return ""
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
                if image.width * image.height > PREVIEW_PIXELS:
                    return ""
                image.draft("RGB", (PREVIEW_SIDE, PREVIEW_SIDE))
                image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
                packed = io.BytesIO()
                image.convert("RGB").save(packed, "JPEG", quality=85)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return ""  # a picture that cannot be shown is no reason to hide the embedding
    return "data:image/jpeg;base64," + base64.b64encode(packed.getvalue()).decode("ascii")
