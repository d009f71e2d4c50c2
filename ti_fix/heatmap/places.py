"""Which positions of a prompt's context belong to a word; an embedding is one word, however many vectors it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ti_fix.errors import WrongUse
from ti_fix.prompt import Chunk, split_prompt
from ti_fix.tokenizer import encode

CHUNK = 77


def places_of(prompt: str, words: Iterable[str], rows: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Positions of each word in the context, (77 * chunks) tokens long, start and end tokens included in the count.

    Both text encoders of SDXL see the same positions, so one answer serves both.

    Args:
        prompt: as the user typed it; emphasis and BREAK are read as the WebUIs read them.
        words: words or phrases of the prompt, or triggers of embeddings; case does not matter.
        rows: trigger -> vectors, of the embeddings that the prompt may call.

    Raises:
        WrongUse: a word is not in the prompt.
    """
    chunks = split_prompt(prompt, rows, encode)
    triggers = {trigger.lower(): trigger for trigger in rows}
    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        places = _places(chunks, word, triggers)
        if not places:
            raise WrongUse(f"{word!r} is not in the prompt; choose words that stand in it: {prompt[:120]!r}.")
        found[word] = places
    return found


def _places(chunks: Sequence[Chunk], word: str, triggers: Mapping[str, str]) -> tuple[int, ...]:
    trigger = triggers.get(word.strip().lower())
    places: list[int] = []
    for number, chunk in enumerate(chunks):
        taken = {s.start + i for s in chunk.splices for i in range(s.rows)}
        if trigger is not None:
            places += [
                number * CHUNK + s.start + i for s in chunk.splices if s.trigger == trigger for i in range(s.rows)
            ]
        else:
            places += [number * CHUNK + i for i in _found_in(chunk, encode(word), taken)]
    return tuple(places)


def _found_in(chunk: Chunk, spelled: list[int], taken: set[int]) -> list[int]:
    """Positions of every occurrence of these ids before the chunk's end."""
    length = len(spelled)
    starts = range(1, chunk.end - length + 1) if length else ()
    return [
        start + i
        for start in starts
        if list(chunk.ids[start : start + length]) == spelled and not taken & set(range(start, start + length))
        for i in range(length)
    ]
