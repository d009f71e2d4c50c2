"""The sides of an evaluation that was asked for on the page: the embedding, others, the steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.evaluate import Candidate, EvalConfig, as_stored, default_candidates
from ti_fix.evaluate.steps import run_figures, sides_of_steps
from ti_fix.formats import read
from ti_fix.repair import clean, scan
from ti_fix.train.history import Run
from ti_fix.ui.desk import Desk
from ti_fix.ui.library import Entry

if TYPE_CHECKING:
    from ti_fix.ui.evaluate_bench import Wish


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """See the module.

    Attributes:
        candidates: the first is the one in question.
        missing: sentences about sides that could not be had.
        run: the training run whose steps are among them.
        steps: those, and the result behind them.
    """

    candidates: Sequence[Candidate]
    missing: tuple[str, ...] = ()
    run: Run | None = None
    steps: Sequence[Candidate] = ()


def embedding_of(desk: Desk, entry_id: str) -> Embedding:
    """The embedding of an entry, repaired where it has to be and of the loaded model's kind.

    Raises:
        TiFixError: nothing is chosen, or it cannot be used.
    """
    if not entry_id:
        raise WrongUse("Choose an embedding first.")
    entry: Entry = desk.library.find(entry_id)
    found = list(clean(desk.library.load(entry)))
    if not found:
        raise WrongUse(f"{entry.where[0]} cannot be used; the Files page says why.")
    return found[0]


def run_of(desk: Desk, name: str) -> Run | None:
    """The newest run of a name; None for an empty one.

    Raises:
        WrongUse: there is none that has kept steps.
    """
    if not name:
        return None
    found = next((run for run in desk.training.runs() if run.config.name == name and run.saved), None)
    if found is None:
        raise WrongUse(f"No training run {name!r} has kept embeddings of its steps; choose one of the list.")
    return found


def result_of(desk: Desk, run: Run) -> Embedding:
    """What a run has come to: its result in the embeddings folder, or the last step that it has kept."""
    place = desk.training.place(run.config.name)
    return _load(desk, place if place.is_file() else run.final or run.saved[-1][1])


def sides_of(desk: Desk, wish: Wish, config: EvalConfig, embedding: Embedding) -> Sides:
    """The sides that a wish asks for."""
    sides = default_candidates(embedding.name, embedding, config.class_word, negative=config.negative)
    missing = []
    if wish.as_stored and wish.entry:
        stored = as_stored(read(desk.library.find(wish.entry).paths[0]).embedding, embedding)
        if stored is None:
            missing.append("As stored, the file cannot be loaded at all: that is the side “without”.")
        else:
            sides.insert(1, stored)
    for entry_id in wish.against:
        if entry_id != wish.entry:
            other = embedding_of(desk, entry_id)
            sides.append(Candidate(label=other.name, word=other.name, embeddings=(other,)))
    run = run_of(desk, wish.run_name)
    if run is None:
        return Sides(candidates=sides, missing=tuple(missing))
    steps = sides_of_steps(run.saved, lambda path: _load(desk, path))
    return Sides(candidates=[sides[0], *steps, *sides[1:]], missing=tuple(missing), run=run, steps=[*steps, sides[0]])


def figures_of(sides: Sides, vocabulary: Vocabulary) -> dict[str, bytes]:
    """Curves of the run, and the way of its vector; see `run_figures`."""
    if sides.run is None:
        return {}
    return run_figures(sides.run.saved[0][1].parent / "log.csv", sides.steps, vocabulary)


def _load(desk: Desk, path: Path) -> Embedding:
    """The embedding of a file that a run has written, for the loaded model.

    Raises:
        WrongUse: it holds none.
    """
    judged = scan([path], family=desk.host.family() or desk.host.training_host().model().family)
    found = [each for one in judged for each in clean(one)]
    if not found:
        raise WrongUse(f"{path.name} holds no embedding that the loaded model can use; load the model of the run.")
    return found[0]
