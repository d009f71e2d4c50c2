"""What the Convert page and its API route share: which embeddings wait, and the conversion as a job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ti_fix.convert import MATCH, ConvertConfig
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, Embedding, Family, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.jobs import Job, Progress
from ti_fix.repair import Judged
from ti_fix.repair.clean import provenance
from ti_fix.ui import progress
from ti_fix.ui.convert_pictures import Pictures, draw
from ti_fix.ui.desk import Desk
from ti_fix.ui.library import Entry
from ti_fix.ui.progress import Outcome

if TYPE_CHECKING:  # the WebUI waits for this module at its start; what converts is imported when it is asked to
    from ti_fix.convert import Conversion, Target

T = TypeVar("T")

CACHE = Path(__file__).resolve().parents[2] / "cache"
"""What was learned of checkpoints, beside the extension's code; the load hook uses the same folder."""

Writing = Callable[[], AbstractContextManager[None]]
"""`Desk.writing` or `Desk.writing_from_page`."""

ENDINGS = {SDXL.name: "-sdxl", SD15.name: "-sd15"}
"""What is put behind a trigger, as the original keeps its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Converted:
    """An event: one embedding is done.

    Attributes:
        name: its trigger.
        before: as it was.
        conversion: what came out; None where that is impossible, as `problem` says.
        words: encoder key -> nearest words of each vector.
        path: the file, None where nothing was written.
        problem: a sentence.
        pictures: test pictures, if they were asked for.
    """

    name: str
    before: Embedding | None = None
    conversion: Conversion | None = None
    words: dict[str, list[list[str]]] | None = None
    path: Path | None = None
    problem: str = ""
    pictures: Pictures = ()


class ConvertDesk:
    """See the module.

    Args:
        desk: of the process.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.working = Job()
        desk.jobs.append(self.working)

    @property
    def family(self) -> Family:
        """What is converted for: the model that is loaded, SDXL while there is none."""
        return self.desk.library.family

    def waiting(self) -> list[Entry]:
        """What the list has for the other kind of model."""
        return [entry for entry in self.desk.library.entries if entry.verdict == "convert" and entry.confined]

    def events(
        self,
        entries: Sequence[Entry],
        config: ConvertConfig,
        stop: threading.Event,
        *,
        writing: Writing | None,
        drawn: bool = False,
    ) -> Iterator[Progress | Converted | Outcome]:
        """Convert several; with `writing` into files beside the originals, which the host then reads.

        Args:
            entries: of the list.
            config: how.
            stop: looked at between two embeddings.
            writing: how the folders are held while a file is written; None writes nothing.
            drawn: make test pictures too.
        """
        while self.desk.host.loading() and not stop.wait(progress.WATCH):
            yield Progress(done=0, total=len(entries), note="The model is being loaded.")
        yield Progress(done=0, total=len(entries), note="Reading the words of the loaded model.")
        target, vocabulary = self._target(config)
        done: list[Converted] = []
        for number, entry in enumerate(entries):
            yield Progress(done=number, total=len(entries), note=entry.where[0])
            if stop.is_set():
                break
            each = self._one(entry, target, vocabulary, config, stop, writing)
            if drawn and each.conversion is not None:
                yield Progress(done=number, total=len(entries), note=f"{entry.where[0]}: drawing test pictures.")
                host = self.desk.host
                pictures = draw(host.training_host(), each.conversion.embedding, host.picture_size())
                each = replace(each, pictures=pictures)
            done.append(each)
            yield each
        if any(each.path for each in done):
            yield from self.desk.library.refresh()
            self.desk.host.refresh_embeddings()
        yield _outcome(done, len(entries), write=writing is not None)

    def _target(self, config: ConvertConfig) -> tuple[Target, Vocabulary | None]:
        from ti_fix.convert import Converter, Target
        from ti_fix.train.monitor import order_probe

        family, vocabulary = self.family, self.desk.host.vocabulary()
        if family is SD15:
            return Target(family=SD15), vocabulary
        if vocabulary is None or not {CLIP_L.key, CLIP_G.key} <= vocabulary.tables.keys():
            raise WrongUse("No SDXL model is loaded. Choose one at the top of the WebUI, make a picture and try again.")
        model = self.desk.host.training_host().model() if config.method == MATCH else None
        converter = Converter(vocabulary, CACHE, model=model, probe=order_probe)
        return Target(family=SDXL, converter=converter), vocabulary

    def _one(
        self,
        entry: Entry,
        target: Target,
        vocabulary: Vocabulary | None,
        config: ConvertConfig,
        stop: threading.Event,
        writing: Writing | None,
    ) -> Converted:
        from ti_fix.convert import Conversion, convert

        try:
            judged = self.desk.library.load(entry)
            before = _before(judged)
            source = self.desk.host.fit(before)
            *_, last = self._undisturbed(config, lambda: list(convert(source, target, config, stop.is_set)))
            assert isinstance(last, Conversion)
            last = replace(last, embedding=self.desk.host.publish(last.embedding))
            path = self._write(last.embedding, target.family, writing) if writing else None
        except TiFixError as error:
            return Converted(name=entry.trigger, problem=str(error))
        words = _words(self.desk.host.fit(last.embedding), vocabulary)
        return Converted(name=entry.trigger, before=before, conversion=last, words=words, path=path)

    def _undisturbed(self, config: ConvertConfig, work: Callable[[], T]) -> T:
        """Do work while no picture is made, where the loaded model takes part in it."""
        return self.desk.host.training_host().run(work) if config.method == MATCH else work()

    def _write(self, embedding: Embedding, family: Family, writing: Writing) -> Path:
        named = replace(embedding, name=file_name(embedding.name + ENDINGS[family.name]), aliases=())
        with writing():
            path = self.desk.output_folder / f"{named.name}.safetensors"
            data = to_bytes(named, family=family)
            if not (path.is_file() and path.read_bytes() == data):
                write_bytes(path, data)
        return path


def _before(judged: Judged) -> Embedding:
    """The embedding as it is to be converted, with a word about where it came from."""
    after = judged.result.after
    if after is None:
        raise TiFixError(f"{judged.trigger} holds no embedding that can be used.")
    return replace(after, metadata={**provenance(judged), **after.metadata})


def _words(embedding: Embedding, vocabulary: Vocabulary | None) -> dict[str, list[list[str]]]:
    from ti_fix.train.monitor import nearest_words

    tables = vocabulary.tables if vocabulary else {}
    known = {
        key: block
        for key, block in embedding.vectors.items()
        if key in tables and tables[key].shape[1] == block.shape[1]
    }
    return nearest_words(known, vocabulary) if vocabulary and known else {}


def _outcome(done: Sequence[Converted], asked: int, *, write: bool) -> Outcome:
    good = sum(each.conversion is not None for each in done)
    start = f"{good:,} of {asked:,} converted"
    where = next((each.path.parent for each in done if each.path), None)
    text = f"{start}; written to {where}." if where else f"{start}; nothing was written." if not write else f"{start}."
    return Outcome(text=text, problems=tuple(each.problem for each in done if each.problem))


_desks: dict[int, tuple[Desk, ConvertDesk]] = {}
_making = threading.Lock()


def convert_desk_of(desk: Desk) -> ConvertDesk:
    """The one of this process: a job is found again after the pages were built anew."""
    with _making:
        known = _desks.get(id(desk))
        if known is None or known[0] is not desk:
            _desks.clear()
            _desks[id(desk)] = (desk, ConvertDesk(desk))
        return _desks[id(desk)][1]


def as_dict(each: Converted, root: Path | None) -> dict[str, Any]:
    """The stable form that scripts read."""
    written = [] if each.path is None else [each.path.relative_to(root).as_posix() if root else each.path.name]
    if each.conversion is None:
        return {"trigger": each.name, "written": written, "message": each.problem, "vectors": [], "findings": []}
    return {"trigger": each.name, "written": written, **each.conversion.as_dict()}
