"""How surely a picture shows a word of its prompt rather than others of its kind.

CLIP binds words to things loosely: to a picture of a blue circle on white, every text that says “red circle” is wrong,
and among wrong texts the one with “blue background” wins because blue is there. So a word is not judged inside the
prompt as it was written but inside the prompt as the picture reads: its other words are first exchanged for those that
fit the picture best. Then a wrong colour costs the colour, and neither the object nor the scene.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ti_fix.evaluate import metrics
from ti_fix.phrases import Phrase, reworded

ROUNDS = 2
"""How often the words are gone through while a picture is read; a second round is for words that hang on later ones."""

Encode = Callable[[Sequence[str]], Tensor]
"""Texts -> features (n, width) of unit length."""


def reading(picture: Tensor, prompt: str, found: Sequence[Phrase], encode: Encode) -> tuple[str, ...]:
    """The words that fit a picture best in the places of a prompt's phrases; its own where nothing fits better.

    Args:
        picture: (width,).
        prompt: in which the phrases were found.
        found: its phrases.
        encode: see `Encode`.
    """
    words = [phrase.text for phrase in found]
    for _ in range(ROUNDS):
        before = list(words)
        for place, phrase in enumerate(found):
            choices = (phrase.text, *phrase.alternatives)
            cosines = encode(_texts(prompt, found, words, place)) @ picture
            best = int(cosines.argmax())
            if choices[best] != words[place] and cosines[best] > cosines[choices.index(words[place])]:
                words[place] = choices[best]
        if words == before:
            break
    return tuple(words)


def of_phrases(picture: Tensor, prompt: str, found: Sequence[Phrase], encode: Encode, scale: float) -> list[Tensor]:
    """Adherence of each phrase, the others as the picture reads; see `metrics.adherence`.

    Args:
        picture: (width,).
        prompt: what the picture should show.
        found: its phrases, each with alternatives.
        encode: see `Encode`.
        scale: the judge's logit scale.
    """
    words = reading(picture, prompt, found, encode)
    scores = []
    for place in range(len(found)):
        said, *others = encode(_texts(prompt, found, words, place))
        scores.append(metrics.adherence(picture, said, torch.stack(others), scale))
    return scores


def _texts(prompt: str, found: Sequence[Phrase], words: Sequence[str], place: int) -> list[str]:
    """The prompt with each choice for one phrase, its own word first, and `words` for the others."""
    phrase = found[place]
    choices = (phrase.text, *phrase.alternatives)
    return [reworded(prompt, found, [*words[:place], word, *words[place + 1 :]]) for word in choices]
