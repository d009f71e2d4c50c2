"""The Model page's report, environment and strategies, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ti_fix.embedding import ENCODERS
from ti_fix.ui.markup import empty, name, shown
from ti_fix.ui.model_words import ENVIRONMENT, LIGHTS, STATES, TEXTS

Checks = Sequence[Mapping[str, Any]]


def report(found: Mapping[str, Any] | None) -> str:
    """Light, and one row for each check; what is not as it should be comes first."""
    if found is None:
        return empty(TEXTS["no_model"], TEXTS["no_model_do"])
    rows = sorted(found["checks"], key=lambda c: _ORDER[state_of(c)])
    titles = {e["place"]: ENCODERS[e["key"]].title for e in found["encoders"]}
    return (
        f'<header class="{found["light"]}"><i class="lamp"></i><div><h3>{name(found["model"])}</h3>'
        f"<p><b>{shown(LIGHTS[found['light']])}</b></p>{_facts(found)}</div></header>"
        f"<table><thead><tr><th></th>{_heads('check', 'encoder', 'found', 'expected')}</tr></thead>"
        f"<tbody>{''.join(_row(c, titles) for c in rows)}</tbody></table>"
    )


_ORDER = {"error": 0, "warning": 1, "mended": 2, "note": 3, "ok": 4}


def state_of(check: Mapping[str, Any]) -> str:
    """``mended`` where it was put right when the model was loaded, else its severity."""
    return "mended" if check.get("mended") else str(check["severity"])


def _facts(found: Mapping[str, Any]) -> str:
    encoders = ", ".join(
        f"{ENCODERS[e['key']].title} {e['rows']:,} × {e['width']:,} {e['dtype']}" for e in found["encoders"]
    )
    seen = found["at_load"]
    at_load = f"<p><span>{TEXTS['at_load']}</span> {seen['milliseconds']:g} ms</p>" if seen else ""
    return f"<p>{shown(encoders)}</p>{at_load}"


def _heads(*keys: str) -> str:
    return "".join(f"<th>{shown(TEXTS[key])}</th>" for key in keys)


def _row(check: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    state = state_of(check)
    where = titles.get(check["place"] or "", "")
    mended = (
        f'<p class="mended"><span>{TEXTS["mended"]}</span> {name(check["repaired"])}</p>' if state == "mended" else ""
    )
    said = f'<tr class="more {state}"><td></td><td colspan="4">{name(check["message"])}{mended}</td></tr>'
    return (
        f'<tr class="{state}"><td><i class="lamp" title="{shown(STATES[state])}"></i>'
        f'<span class="hear">{shown(STATES[state])}</span></td><td>{name(check["title"])}</td><td>{shown(where)}</td>'
        f"<td>{name(check['found'])}</td><td>{name(check['expected'])}</td></tr>{said if check['message'] else ''}"
    )


def environment(values: Iterable[tuple[str, str]]) -> str:
    """What the model runs on, and how much is free."""
    rows = "".join(f"<dt>{shown(ENVIRONMENT.get(key, key))}</dt><dd>{name(value)}</dd>" for key, value in values)
    return f"<h4>{shown(TEXTS['environment'])}</h4><dl>{rows}</dl>"


def ways(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The strategies side by side, a table for each encoder."""
    title = f"<h4>{shown(TEXTS['ways'])}</h4><p>{shown(TEXTS['ways_hint'])}</p>"
    if not measured:
        return f"{title}<p><em>{shown(TEXTS['ways_none'])}</em></p>"
    heads = f"<tr>{_heads('way', 'prepare', 'per_prompt', 'fidelity', 'reversible')}</tr>"
    tables = (
        f"<h5>{shown(ENCODERS[key].title)}</h5><table><thead>{heads}</thead><tbody>"
        f"{''.join(map(_way, rows))}</tbody></table>"
        for key, rows in measured.items()
    )
    return title + "".join(tables)


def _way(row: Mapping[str, Any]) -> str:
    pooled = "" if row["pooled"] is None else f" / {row['pooled']:.3f}"
    answer = TEXTS["yes" if row["reversible"] else "no"]
    return (
        f'<tr><td title="{shown(row["title"])}">{shown(row["strategy"])}</td><td>{row["prepare_ms"]:.1f} ms</td>'
        f"<td>{row['prompt_ms']:+.1f} ms</td><td>{row['fidelity']:.3f}{pooled}</td><td>{shown(answer)}</td></tr>"
    )
