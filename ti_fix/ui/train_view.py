"""How a run looks: curves, lengths, words, previews, findings, and the list of earlier runs; all as HTML."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ti_fix.embedding import ENCODERS
from ti_fix.train import FindingEvent, TrainConfig
from ti_fix.train.history import Run
from ti_fix.ui import markup, model_tokens
from ti_fix.ui.forms import Form
from ti_fix.ui.markup import name, shown
from ti_fix.ui.train_live import Live
from ti_fix.ui.train_words import TEXTS

Points = Sequence[tuple[int, float]]
T = TypeVar("T")

WIDTH, HEIGHT = 640, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 26
"""Pixels of the curve's drawing and of its margins."""

LONGEST = 4.0
"""Multiple of a word's length at the end of the bar."""

SHOWN_VECTORS = 6
SHOWN_RUNS = 20


def live(run: Live) -> str:
    """What a run tells in numbers, the validation loss in front; of a look before one only what it found."""
    if run.look:
        return f'<div class="run">{findings(run.findings, unfolded=True)}{_tokens(run)}</div>'
    parts = [_result(run), _curve(run.fixed, run.losses, run.best_step), _lengths(run), _words(run)]
    return f'<div class="run">{findings(run.findings)}{"".join(parts)}</div>'


def _tokens(run: Live) -> str:
    if run.tokens is None:
        return ""
    return _section("as_tokens", model_tokens.tokens(run.tokens))


def _result(run: Live) -> str:
    if run.done is None or run.done.path is None:
        return ""
    word = shown(run.config.name)
    return (
        f'<section><h4>{shown(TEXTS["use_it"])}</h4><div class="prompt"><code>{name(run.config.name)}</code>'
        f'<button type="button" class="step" data-ti-fix-copy="{word}">{shown(TEXTS["copy"])}</button>'
        f'<button type="button" class="step ti_fix_in_webui" data-ti-fix-add="{word}">{shown(TEXTS["add"])}</button>'
        f"{markup.go_to(TEXTS['evaluate'], 'evaluate', f'take:{run.config.name}')}</div></section>"
    )


def _curve(fixed: Points, losses: Points, best_step: int) -> str:
    head = f"<h4>{shown(TEXTS['fixed_loss'])}</h4>"
    if len(fixed) + len(losses) < 2:
        return f'<section>{head}<p class="hint">{shown(TEXTS["too_early"])}</p></section>'
    now = f"{fixed[-1][1]:.4f}" if fixed else "–"
    best = next((loss for step, loss in fixed if step == best_step), None)
    told = f"<b>{now}</b>" + (
        f" · <span>{shown(TEXTS['best'])}</span> <b>{best:.4f}</b> "
        f"<span>{shown(TEXTS['step'])}</span> <b>{best_step:,}</b>"
        if best is not None
        else ""
    )
    key = (
        f'<p class="key"><i class="fixed"></i><span>{shown(TEXTS["fixed_loss"])}</span>'
        f'<i class="loss"></i><span>{shown(TEXTS["training_loss"])}</span></p>'
    )
    return (
        f'<section><header>{head}<p class="told">{told}</p></header>{curve(fixed, losses, best_step)}{key}'
        f'<p class="hint">{shown(TEXTS["lower"])}</p></section>'
    )


def curve(fixed: Points, losses: Points = (), best_step: int = -1) -> str:
    """The drawing of a curve, its colours those of the theme; the training loss behind it has a scale of its own."""
    low, high = _range(fixed or losses)
    if low == high:
        return ""
    last = max([step for step, _ in (*fixed, *losses)] or [1]) or 1

    def at(step: int, value: float) -> tuple[float, float]:
        return _place(step / last, (value - low) / (high - low))

    digits = max(2, math.ceil(1 - math.log10(high - low)))
    own_low, own_high = _range(losses)
    faint = [_place(step / last, (value - own_low) / ((own_high - own_low) or 1)) for step, value in losses]
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.{digits}f}</text>'
        for value in (low + (high - low) * share for share in (0.1, 0.5, 0.9))
        for y in (at(0, value)[1],)
    )
    axis = "".join(
        f'<text x="{at(step, low)[0]:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{step:,}</text>'
        for step, anchor in ((0, "start"), (last // 2, "middle"), (last, "end"))
    )
    dots = "".join(f'<circle class="fixed" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in (at(*p) for p in fixed))
    best = next((at(step, value) for step, value in fixed if step == best_step), None)
    mark = f'<circle class="best" cx="{best[0]:.1f}" cy="{best[1]:.1f}" r="5"/>' if best else ""
    label = f"{TEXTS['fixed_loss']}, {TEXTS['steps']} 0 – {last:,}"
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{shown(label)}">{grid}{axis}'
        f"{_line('loss', faint)}{_line('fixed', (at(*p) for p in fixed))}{dots}{mark}</svg>"
    )


def _range(points: Points) -> tuple[float, float]:
    """The smallest and the largest value with some room; equal where there is none."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return 0.0, 0.0
    room = (max(values) - min(values)) * 0.12 or abs(max(values)) * 0.1 or 1.0
    return min(values) - room, max(values) + room


def _place(along: float, up: float) -> tuple[float, float]:
    """Shares of the drawing's width and height as its pixels."""
    return LEFT + (WIDTH - LEFT - RIGHT) * along, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up


def _line(kind: str, points: Iterable[tuple[float, float]]) -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{text}"/>' if text else ""


def _lengths(run: Live) -> str:
    if not run.lengths:
        return ""
    bars = "".join(
        f'<div class="meter"><span>{shown(_encoder(key))}</span><div class="track"><i style="width:'
        f'{100 * min(1.0, length / LONGEST):.0f}%"></i><u style="left:{100 / LONGEST:.0f}%"></u></div>'
        f"<b>{length:.2f} ×</b></div>"
        for key, length in _in_order(run.lengths)
    )
    return (
        f'<section><h4>{shown(TEXTS["length"])}</h4>{bars}<p class="hint">{shown(TEXTS["length_hint"])}</p></section>'
    )


def _in_order(by_encoder: Mapping[str, T]) -> list[tuple[str, T]]:
    """By encoder as models have them; a resumed run tells them in another order."""
    places = list(ENCODERS)
    return sorted(by_encoder.items(), key=lambda item: places.index(item[0]) if item[0] in places else len(places))


def _encoder(key: str) -> str:
    return ENCODERS[key].title if key in ENCODERS else key


def _words(run: Live) -> str:
    if not run.words:
        return ""
    rows = "".join(
        f'<div class="words"><span>{shown(_encoder(key))}</span>'
        + "".join(f"<code>{name(', '.join(word.strip() for word in row))}</code>" for row in rows[:SHOWN_VECTORS])
        + "</div>"
        for key, rows in _in_order(run.words)
    )
    return _section("words", rows)


def _section(key: str, content: str) -> str:
    hint = shown(TEXTS[f"{key}_hint"])
    return f'<section><h4>{shown(TEXTS[key])}</h4>{content}<p class="hint">{hint}</p></section>'


def strip(previews: Sequence[tuple[int, str]]) -> str:
    """The previews, the newest first."""
    if not previews:
        return ""
    pictures = "".join(
        f'<figure><img src="{picture}" alt="{shown(TEXTS["step"])} {step:,}">'
        f"<figcaption><span>{shown(TEXTS['step'])}</span> {step:,}</figcaption></figure>"
        for step, picture in reversed(previews)
    )
    return f'<section><h4>{shown(TEXTS["previews"])}</h4><div class="strip" tabindex="0">{pictures}</div></section>'


def findings(events: Sequence[FindingEvent], *, unfolded: bool = False) -> str:
    """What was noticed, the worst first, each with the buttons that put it right; notes alone are folded."""
    if not events:
        return ""
    ranks = {"error": 0, "warning": 1, "note": 2}
    ordered = sorted(events, key=lambda event: ranks[event.finding.severity])
    items = "".join(
        f'<li class="{event.finding.severity}">{shown(event.finding.message)}{_remedies(event)}</li>'
        for event in ordered
    )
    unfolded = unfolded or any(event.finding.severity != "note" for event in events)
    return (
        f'<details class="noticed"{" open" if unfolded else ""}><summary><span>{shown(TEXTS["noticed"])}</span>'
        f" <b>{len(events)}</b></summary><ul>{items}</ul></details>"
    )


def _remedies(event: FindingEvent) -> str:
    labels = {field.name: field.about.label for field in Form(TrainConfig).fields}
    return "".join(
        markup.button(
            f"<span>{shown(TEXTS['set'])}</span> <span>{shown(labels[setting])}</span> "
            f"<span>{shown(TEXTS['to'])}</span> {shown(_value(value))}",
            f"remedy:{json.dumps({setting: value})}",
            kind="step",
        )
        for setting, value in event.remedy.items()
        if setting in labels
    )


def _value(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def history(runs: Sequence[Run]) -> str:
    """The earlier runs, newest first."""
    if not runs:
        return markup.empty(TEXTS["no_history"], TEXTS["no_history_do"])
    return f'<ul class="runs">{"".join(map(_run, runs[:SHOWN_RUNS]))}</ul>'


def _run(run: Run) -> str:
    config, best = run.config, run.best
    id_ = config.name
    facts = [f"<b>{run.steps:,}</b> <span>{shown(TEXTS['step' if run.steps == 1 else 'some_steps'])}</span>"]
    if best:
        best_at = f"<span>{shown(TEXTS['step'])}</span> <b>{best[0]:,}</b>"
        facts.append(f"<span>{shown(TEXTS['best'])}</span> <b>{best[1]:.4f}</b> {best_at}")
    facts.append(markup.counted(config.vectors))
    facts.append(f"<span>{shown(TEXTS['rate'])}</span> <b>{shown(config.learning_rate)}</b>")
    buttons = markup.button(shown(TEXTS["again"]), f"again:{id_}", kind="step")
    if run.resumable and run.steps < config.steps:
        buttons += markup.button(shown(TEXTS["go_on"]), f"resume:{id_}", kind="step")
    if run.final:
        buttons += markup.button(shown(TEXTS["use_best"]), f"use:best:{id_}", kind="step")
    kept = "".join(
        markup.button(f"<span>{shown(TEXTS['use_step'])}</span> {step:,}", f"use:{step}:{id_}", kind="step")
        for step, _ in run.saved
    )
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when))
    best_step = best[0] if best else -1
    return (
        f'<li><div class="what"><strong>{name(config.name)}</strong><small>{when}</small>'
        f'<p class="facts">{" · ".join(facts)}</p><div class="do">{buttons}{kept}</div></div>'
        f"{curve(run.curve, (), best_step)}</li>"
    )
