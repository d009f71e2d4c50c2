"""Settings of an evaluation, and what is compared in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.options import option, validate
from ti_fix.protocols import ImageRequest

PLACE = "[name]"
"""What stands in a prompt where the embedding or its stand-in comes; the sign that the WebUI's templates use."""

DEFAULT_PROMPTS = (
    "a photo of [name]",
    "a photo of [name] on the beach",
    "a photo of [name] in the snow",
    "a red [name]",
    "a painting of [name]",
    "[name] on a white background",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How pictures are made and scored."""

    class_word: str = option("", "Class word", "The ordinary word for what the embedding shows, for instance cat.")
    seeds: int = option(
        4, "Pictures a prompt", "Pictures of each prompt, with seeds 0, 1, 2 …", minimum=1, maximum=1000
    )
    width: int = option(1024, "Width", "Of the pictures, pixels.", minimum=64, maximum=4096)
    height: int = option(1024, "Height", "Of the pictures, pixels.", minimum=64, maximum=4096)
    steps: int = option(20, "Sampling steps", "Of each picture.", minimum=1, maximum=150)
    cfg_scale: float = option(7.0, "Guidance scale", "Classifier-free guidance.", minimum=1.0, maximum=30.0)
    negative_prompt: str = option("", "Negative prompt", "The same for all pictures.", expert=True)
    negative: bool = option(
        False, "Negative embedding", "The embedding is for the negative prompt; [name] is put there."
    )
    groups: tuple[str, ...] = option(
        (), "Own groups", "Words that belong to a group: colour=crimson,teal object=wombat.", expert=True
    )
    good: str = option("Good photo.", "Good quality", "Text that stands for a good picture.", expert=True)
    bad: str = option("Bad photo.", "Bad quality", "Its opposite.", expert=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """One side of a comparison.

    Attributes:
        label: what the tables call it.
        word: what stands in the place of ``[name]``; empty for “without”.
        embeddings: what the word calls.
        generate: makes its pictures where they come from another model than the others'.
        step: of the training run that it comes from.
    """

    label: str
    word: str
    embeddings: tuple[Embedding, ...] = ()
    generate: Callable[[ImageRequest], Any] | None = None
    step: int | None = None


def check(config: EvalConfig, candidates: Sequence[Candidate], prompts: Sequence[str]) -> None:
    """Refuse what cannot be evaluated.

    Raises:
        WrongUse: says what is wrong and what to do.
    """
    validate(config)
    labels = [each.label for each in candidates]
    if len(set(labels)) != len(labels):
        raise WrongUse("Two of the sides that are compared have the same label; give each its own.")
    if not candidates:
        raise WrongUse("There is nothing to evaluate; name an embedding, or a folder of pictures.")
    if not prompts:
        raise WrongUse(f"There is no prompt; write one with {PLACE} where the embedding comes.")
    without = [prompt for prompt in prompts if PLACE not in prompt]
    if without and not config.negative:
        raise WrongUse(
            f"{without[0]!r} has no {PLACE}, so nothing would differ; write {PLACE} where the embedding comes."
        )


def filled(prompt: str, word: str) -> str:
    """The prompt with the word in its place; without a word the gap is closed."""
    if word:
        return prompt.replace(PLACE, word)
    return " ".join(prompt.replace(PLACE, " ").split()).replace(" ,", ",").strip(" ,")


def default_candidates(name: str, embedding: Embedding, class_word: str, *, negative: bool = False) -> list[Candidate]:
    """The embedding, its class word where one is given, and nothing at all."""
    sides = [Candidate(label=name, word=name, embeddings=(embedding,))]
    if class_word and not negative:
        sides.append(Candidate(label=f"class word “{class_word}”", word=class_word))
    return [*sides, Candidate(label="without", word="")]


def as_stored(stored: Embedding | None, repaired: Embedding) -> Candidate | None:
    """The file as a WebUI without ti_fix takes it, for comparison with the repaired one.

    Args:
        stored: what was read, None where nothing could be.
        repaired: what is used instead.

    Returns:
        None where a WebUI cannot load it at all: other encoders than the repaired one, or uneven halves.
    """
    if stored is None or stored.vectors.keys() != repaired.vectors.keys():
        return None
    shapes = {key: block.shape[1] for key, block in repaired.vectors.items()}
    even = len({len(block) for block in stored.vectors.values()}) == 1
    if not even or any(block.shape[1] != shapes[key] for key, block in stored.vectors.items()):
        return None
    return Candidate(label="as stored", word=repaired.name, embeddings=(replace(stored, name=repaired.name),))
