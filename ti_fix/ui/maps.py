"""Attention maps inside txt2img and img2img: the controls, and one batch's recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor

from ti_fix.embedding import CLIP_L
from ti_fix.errors import WrongUse
from ti_fix.heatmap import MapSettings
from ti_fix.phrases import content_words, phrases
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.forms import Form

if TYPE_CHECKING:  # the WebUI waits for this module at its start; what records is imported when it is asked for
    from ti_fix.heatmap import MapFacts, WordMaps

FORM = Form(MapSettings)


def draw_controls(tab: str) -> list[Any]:
    """Draw the fold of a tab (``txt2img``, ``img2img``).

    Returns:
        The components, in the order in which `MapRun` takes their values after the first, which says whether to.
    """
    import gradio as gr

    from ti_fix.ui import compat, form_view
    from ti_fix.ui.markup import shown

    page = f"maps_{tab}"
    with gr.Accordion(LABELS["maps"], open=False, elem_id=f"ti_fix_{page}"):
        on = gr.Checkbox(label=LABELS["maps_on"], value=False, elem_id=f"ti_fix_{page}_on")
        words = gr.Textbox(label=LABELS["maps_words"], lines=1, max_lines=1, elem_id=f"ti_fix_{page}_words")
        compat.html(f"ti_fix_{page}_hint", f"<p>{shown(LABELS['maps_words_hint'])}</p>")
        by_group = gr.Checkbox(label=LABELS["maps_groups"], value=False, elem_id=f"ti_fix_{page}_groups")
        settings = form_view.draw(FORM, page)
    return [on, words, by_group, *settings]


class MapRun:
    """Recording of one batch.

    Args:
        unet: the loaded model's.
        steps: of the sampling.
        words: with commas; empty for all that mean something.
        by_group: whether groups get maps too.
        *values: of the form's other controls.
    """

    def __init__(self, unet: Any, steps: int, words: str = "", by_group: bool = False, *values: Any) -> None:
        from ti_fix.heatmap import Recorder

        settings = FORM.config(values) if values else MapSettings()
        self._words = [word.strip() for word in (words or "").split(",") if word.strip()]
        self._by_group = by_group
        self._recorder = Recorder(unet, settings, steps=steps, split=CLIP_L.width)
        self._recorder.__enter__()
        self._places: dict[str, Mapping[str, tuple[int, ...]]] = {}
        self._texts: dict[int, dict[str, None]] = {}

    def close(self) -> None:
        """Take every hook off; harmless a second time."""
        self._recorder.__exit__(None, None, None)

    def expect(self, contexts: Tensor, rows: Sequence[tuple[int, str]], vectors: Mapping[str, int], step: int) -> None:
        """A sampling step begins.

        Args:
            contexts: (rows, tokens, width), the conditioning of every part of every prompt.
            rows: picture and text of each.
            vectors: name -> vectors of the embeddings that prompts may call.
            step: counted from 0.
        """
        from ti_fix.heatmap import Wanted

        wanted = []
        for context, (picture, text) in zip(contexts, rows, strict=False):
            self._texts.setdefault(picture, {})[text] = None
            if text not in self._places:
                self._places[text] = self._placed(text, vectors)
            wanted.append(Wanted(picture=picture, context=context, places=self._places[text]))
        self._recorder.expect(wanted, step)

    def _placed(self, text: str, vectors: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Places of the words that stand in this text; embeddings come first where no words were asked for."""
        from ti_fix.heatmap import places_of

        called = {name: count for name, count in vectors.items() if name.lower() in text.lower()}
        names = {name.lower() for name in called}
        words = self._words or [*called, *(w for w in content_words(text) if w not in names)]
        found: dict[str, tuple[int, ...]] = {}
        for word in words:
            with suppress(WrongUse):  # not in this part of this prompt, or never a word of its own
                found |= places_of(text, [word], called)
        return found

    def sheets(self, pictures: Sequence[Image.Image]) -> list[tuple[int, Image.Image, str]]:
        """(picture, sheet, numbers in words) of each picture and pass; nothing where no word was found."""
        from ti_fix.heatmap import facts_of, sheet

        made = []
        left_out = len(self._recorder.skipped)
        note = f"; {left_out} layers of an unknown size passed over" if left_out else ""
        for maps in self._recorder.maps():
            if maps.picture < len(pictures) and maps.words:
                shown = _with_groups(maps, tuple(self._texts.get(maps.picture, ()))) if self._by_group else maps
                made.append((maps.picture, sheet(pictures[maps.picture], shown), f"{_told(facts_of(shown))}{note}"))
        return made


def _with_groups(maps: WordMaps, texts: Sequence[str]) -> WordMaps:
    """The maps of the words, and behind them those of their groups."""
    import torch

    from ti_fix.heatmap import WordMaps, grouped

    known = {word.lower(): word for word in maps.words}
    groups: dict[str, list[str]] = {}
    for phrase in (phrase for text in texts for phrase in phrases(text)):
        word = known.get(phrase.text.lower())
        if word is not None and word not in groups.setdefault(phrase.group, []):
            groups[phrase.group].append(word)
    found = grouped(maps, groups)
    return WordMaps(
        picture=maps.picture,
        width=maps.width,
        height=maps.height,
        words=(*maps.words, *(f"[{group}]" for group in found.words)),
        maps=torch.cat([maps.maps, found.maps]),
        layers=maps.layers,
        steps=maps.steps,
    )


def _told(facts: Sequence[MapFacts]) -> str:
    return "; ".join(f"{each.word}: mass {each.mass:.4f}, spread {each.entropy:.2f}" for each in facts)
