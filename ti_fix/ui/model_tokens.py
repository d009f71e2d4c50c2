"""The Model page's token view, as HTML: each text, encoder and chunk with its ids, words and vectors."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ti_fix.embedding import ENCODERS
from ti_fix.ui.markup import counted, message, name, shown
from ti_fix.ui.model_words import TEXTS

if TYPE_CHECKING:  # the WebUI waits for this module at its start
    from ti_fix.align.tokens import EncoderView, TextView, Token, TokenView

SHOWN_TEXTS = 12
"""Texts of prompt editing that are drawn; more are counted."""


def tokens(view: TokenView) -> str:
    """A prompt taken apart."""
    notes = [f"<p><span>{TEXTS['cleaned']}</span> {name(', '.join(view.removed))}</p>"] if view.removed else []
    if view.networks:
        told = ", ".join(f"{kind}: {arguments}" for kind, arguments in view.networks)
        notes.append(f"<p><span>{TEXTS['networks']}</span> {name(told)}</p>")
    several = len(view.texts) > 1
    drawn = "".join(_text(text, several) for text in view.texts[:SHOWN_TEXTS])
    more = len(view.texts) - SHOWN_TEXTS
    rest = message(f"… {more:,}", "info") if more > 0 else ""
    return f'<div class="as_tokens">{"".join(notes)}{drawn}{rest}</div>'


def _text(text: TextView, several: bool) -> str:
    head = ""
    if several:
        steps = f"{text.first}" if text.first == text.last else f"{text.first}-{text.last}"
        head = (
            f"<h5><span>{TEXTS['part']}</span> {text.branch + 1} × {text.weight:g}, <span>{TEXTS['steps']}</span>"
            f" {steps}: <code>{name(text.text.strip())}</code></h5>"
        )
    return head + "".join(map(_encoder, text.encoders))


def _encoder(encoder: EncoderView) -> str:
    places = "".join(
        f"<li><b>{name(p['name'])}</b> <span>{TEXTS['chunk']}</span> {p['chunk'] + 1}, "
        f"<span>{TEXTS['position']}</span> {p['position']}, {counted(p['vectors'])}"
        + (f", {p['missing']} <span>{TEXTS['missing']}</span>" if p["missing"] else "")
        + "</li>"
        for p in encoder.places()
    )
    chunks = "".join(_chunk(number, chunk) for number, chunk in enumerate(encoder.chunks, start=1))
    title = shown(ENCODERS[encoder.key].title)
    return f"<section><h6>{title}</h6>{chunks}{f'<ul>{places}</ul>' if places else ''}</section>"


def _chunk(number: int, chunk: tuple[Token, ...]) -> str:
    parts = []
    for pad, group in groupby(chunk, key=lambda token: token.kind == "pad"):
        members = list(group)
        parts.append(_padding(members) if pad else "".join(map(_token, members)))
    return f'<div class="chunk"><b><span>{TEXTS["chunk"]}</span> {number}</b>{"".join(parts)}</div>'


def _token(token: Token) -> str:
    weight = f"<sup>{token.weight:g}</sup>" if token.weight != 1 else ""
    kind = token.kind if token.filled else "vector missing"
    word = token.text.removesuffix("</w>")
    text = f"<span>{name(word)}{weight}</span><small>{token.id}</small>"
    return f'<span class="token {kind}" title="{shown(token.text)}">{text}</span>'


def _padding(members: list[Token]) -> str:
    return (
        f'<span class="token pad">{len(members)} × <span>{TEXTS["padding"]}</span><small>{members[0].id}</small></span>'
    )
