"""Words of a prompt by what they speak of: colour, object, scene, style, action.

A small lexicon, which a user can add to. A word that it does not know belongs to no group and is left out of what is
said about groups; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ti_fix.errors import WrongUse

GROUPS = ("colour", "object", "scene", "style", "action")

_KINDS: Mapping[str, tuple[str, ...]] = {
    "colour": (
        "red orange yellow green blue purple pink brown black white gray",
        "grey violet turquoise golden silver",
    ),
    "object": (
        "cat dog horse bird cow sheep fish",
        "car bus train bicycle boat airplane",
        "man woman boy girl child person robot dragon",
        "chair table lamp clock book bottle cup bag ball guitar hat dress shirt shoe",
        "flower tree house apple banana cake",
        "circle square triangle star cross ring heart diamond",
    ),
    "scene": (
        "beach forest mountain desert field river lake ocean sky jungle",
        "city street room kitchen garden park bridge office studio castle",
        "snow night sunset space",
    ),
    "style": ("photo painting watercolor sketch drawing cartoon anime engraving sculpture mosaic render",),
    "action": (
        "running sitting standing jumping sleeping flying swimming eating walking dancing reading riding smiling",
    ),
}
_TWO_WORDS = {"style": ("oil painting", "pixel art", "pencil drawing")}
KINDS: tuple[tuple[str, ...], ...] = tuple(tuple(kind.split()) for kinds in _KINDS.values() for kind in kinds)
"""Words that are best told from each other: a cat from a dog, a circle from a square."""

OVERLAPS: tuple[frozenset[str], ...] = tuple(
    frozenset(words.split())
    for words in (
        "gray grey silver",
        "purple violet",
        "yellow golden",
        "person man woman boy girl child",
        "river lake ocean beach",
        "forest jungle park garden",
        "city street bridge",
        "field park garden",
        "night space",
        "sketch drawing engraving cartoon anime",
    )
)
"""Words that one picture can show at once, or that mean the same: never alternatives of each other."""

SAME = tuple(frozenset(words.split()) for words in ("gray grey", "purple violet"))
"""Words that mean the same; only the first of them is told from a third."""

LEXICON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {group: (*" ".join(kinds).split(), *_TWO_WORDS.get(group, ())) for group, kinds in _KINDS.items()}
)
"""Group -> its words."""

BACKGROUND_WORDS = frozenset({"background", "backdrop", "wall", "sky", "floor"})
"""A colour right before one of these speaks of the scene."""

STOP_WORDS = frozenset(
    "a an the of on in at with and or to for from by is are it its this that as into over under near very".split()
)
MAX_ALTERNATIVES = 10
"""Other words of a group that a word is told from."""

ENOUGH_KIN = 5
"""So many others of its own kind are enough: whether a picture shows a circle or a horse is not what is asked."""

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A word (or two) of a prompt with its group.

    Attributes:
        text: as it stands in the prompt.
        group: what it speaks of.
        start, end: its place among the prompt's characters.
        alternatives: other words of the group that could stand there.
    """

    text: str
    group: str
    start: int
    end: int
    alternatives: tuple[str, ...]


def lexicon(own: Sequence[str] = (), objects: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The lexicon with the user's own groups in front.

    Args:
        own: ``group=word,word`` each; a group that does not exist yet is made.
        objects: words that are objects whatever the lexicon says (the class word).

    Raises:
        WrongUse: an entry without ``=`` or without words.
    """
    words = {group: list(listed) for group, listed in LEXICON.items()}
    for entry in own:
        group, sign, listed = entry.partition("=")
        given = [word.strip().lower() for word in listed.split(",") if word.strip()]
        if not sign or not group.strip() or not given:
            raise WrongUse(f"{entry!r} is no group; write it as colour=crimson,teal.")
        words[group.strip()] = [*given, *words.get(group.strip(), [])]
    words["object"] = [*(word.strip().lower() for word in objects if word.strip()), *words["object"]]
    return {group: tuple(dict.fromkeys(listed)) for group, listed in words.items()}


def phrases(prompt: str, words: Mapping[str, Sequence[str]] = LEXICON) -> list[Phrase]:
    """The words of a prompt that a group knows, in their order; each place counts once, longer words first."""
    groups = {word: group for group, listed in reversed(list(words.items())) for word in listed}
    found: list[Phrase] = []
    lowered = prompt.lower()
    places = [match.span() for match in _WORD.finditer(lowered)]
    said = {lowered[start:end] for start, end in places}
    i = 0
    while i < len(places):
        length = next((n for n in (3, 2, 1) if _joined(lowered, places, i, n) in groups), 0)
        if length:
            start, end = places[i][0], places[i + length - 1][1]
            following = lowered[slice(*places[i + length])] if i + length < len(places) else ""
            found.append(_phrase(prompt[start:end], (start, end), following, groups, words, said))
        i += length or 1
    return found


def reworded(prompt: str, found: Sequence[Phrase], words: Sequence[str]) -> str:
    """The prompt with other words in the places of its phrases.

    Args:
        prompt: in which the phrases were found.
        found: its phrases, in their order.
        words: one a phrase.
    """
    for phrase, word in reversed(list(zip(found, words, strict=True))):
        prompt = f"{prompt[: phrase.start]}{word}{prompt[phrase.end :]}"
    return prompt


def _phrase(
    text: str,
    place: tuple[int, int],
    following: str,
    groups: Mapping[str, str],
    words: Mapping[str, Sequence[str]],
    said: set[str],
) -> Phrase:
    group = groups[text.lower()]
    kin = next((kind for kind in KINDS if text.lower() in kind), ())
    near = said.union({text.lower()}, *(same for same in OVERLAPS if text.lower() in same))
    related = [word for word in kin if word not in near]
    others = (
        related if len(related) >= ENOUGH_KIN else [w for w in dict.fromkeys((*kin, *words[group])) if w not in near]
    )
    others = [word for number, word in enumerate(others) if not _says_same(word, others[:number])]
    if group == "colour" and following in BACKGROUND_WORDS:
        group = "scene"
    return Phrase(text=text, group=group, start=place[0], end=place[1], alternatives=tuple(others[:MAX_ALTERNATIVES]))


def _says_same(word: str, others: Sequence[str]) -> bool:
    """Whether another spelling or an overlapping word is there already: two of them would count twice."""
    return any(word in same and other in same for same in SAME for other in others)


def _joined(text: str, places: Sequence[tuple[int, int]], first: int, count: int) -> str:
    """So many neighbouring words as one text; empty where the prompt ends before."""
    if first + count > len(places):
        return ""
    return " ".join(text[start:end] for start, end in places[first : first + count])


def content_words(prompt: str, limit: int = 12) -> list[str]:
    """The words of a prompt that mean something by themselves, each once."""
    words = dict.fromkeys(match.group() for match in _WORD.finditer(prompt.lower()))
    return [word for word in words if word not in STOP_WORDS and not word.isdigit()][:limit]
