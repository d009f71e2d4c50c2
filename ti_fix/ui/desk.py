"""What the pages and the API of one process share: the list of files, the running jobs and the way back.

A page may be closed and opened again, and the WebUI may reload all its pages; the desk stays.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import extract, files_in, read
from ti_fix.formats.export import export, usage
from ti_fix.jobs import Busy, Job, Progress
from ti_fix.repair import Judged, Replaced, clean, repair, repair_in_place, repairable, undo, write_clean
from ti_fix.ui.host import PageHost
from ti_fix.ui.library import BACKUP_FOLDER, Entry, Library
from ti_fix.ui.progress import Outcome
from ti_fix.ui.train_desk import TrainDesk


class Desk:
    """See the module.

    Args:
        host: the program that the pages live in.

    Attributes:
        jobs: all that may run, but for reading the folders.
    """

    def __init__(self, host: PageHost) -> None:
        self.host = host
        self.library = Library(host)
        self.reading = Job()
        self.working = Job()
        self.checking = Job()
        self.training = TrainDesk(host)
        self.jobs = [self.working, self.checking, self.training.job, self.training.checking, self.training.captioning]
        self.undoable: tuple[Replaced, ...] = ()
        self._writing = threading.Lock()
        self._carriers: dict[str, Path] = {}

    def take_over(self, host: PageHost) -> None:
        """Go on with another host object, as after a reload of the WebUI's pages."""
        self.host = host
        self.library.host = host
        self.training.host = host

    @property
    def busy(self) -> bool:
        """Whether something runs that must not be cut off; pages add jobs of their own to `jobs`."""
        return any(job.state.active for job in self.jobs)

    @property
    def output_folder(self) -> Path:
        """Where new files go: the first embeddings folder.

        Raises:
            TiFixError: the host has none.
        """
        folders = self.host.embedding_folders
        if not folders:
            raise TiFixError("The WebUI has no embeddings folder; set one with --embeddings-dir and restart it.")
        return folders[0]

    @property
    def carriers(self) -> tuple[str, ...]:
        """LoRAs that bring embeddings along, as `look_through_loras` found them."""
        return tuple(self._carriers)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While open, nobody else changes the folders.

        Raises:
            Busy: somebody does.
        """
        if not self._writing.acquire(blocking=False):
            raise Busy("Files are being repaired already; wait until that is done, then try again.")
        try:
            yield
        finally:
            self._writing.release()

    @contextlib.contextmanager
    def writing_from_page(self) -> Iterator[None]:
        """The same for what a visitor of the page asks for.

        Raises:
            WrongUse: as for `refuse_strangers`.
            Busy: as for `writing`.
        """
        self.refuse_strangers()
        with self.writing():
            yield

    def refuse_strangers(self) -> None:
        """Before the page writes a file, or looks into a folder that its visitor names.

        Raises:
            WrongUse: anybody can be that visitor.
        """
        if self.host.page_exposed():
            raise WrongUse(
                "Other computers can reach this page without a password, so it changes no files and looks into no "
                "folders that are named on it. Start the WebUI with --gradio-auth NAME:PASSWORD, or without --listen "
                "and --share."
            )

    def repair(self, entry: Entry) -> Replaced:
        """Repair one embedding on disk; the caller holds `writing`.

        Raises:
            TiFixError: it cannot be done; then nothing has changed.
        """
        if not entry.confined:
            raise WrongUse(
                f"{entry.where[0]} is a link to a place outside the embeddings folders, which this page does not "
                "change. Repair it there with: ti-fix repair FILE --out FOLDER"
            )
        return repair_in_place(self.library.load(entry), root=entry.root, backups=entry.root / BACKUP_FOLDER)

    def repair_events(self, entries: Sequence[Entry], stop: threading.Event) -> Iterator[Progress | Outcome]:
        """Repair several; then read the list again and tell the host."""
        done: list[Replaced] = []
        problems: list[str] = []
        with self.writing_from_page():
            for number, entry in enumerate(entries):
                yield Progress(done=number, total=len(entries), note=entry.where[0])
                if stop.is_set():
                    break
                try:
                    done.append(self.repair(entry))
                except TiFixError as error:
                    problems.append(str(error))
                if done:
                    self.undoable = tuple(done)
            yield Progress(done=len(entries), total=len(entries), note="")
            yield from self._after(Outcome(text=_repaired(done, stop.is_set()), problems=tuple(problems)))

    def undo_events(self) -> Iterator[Progress | Outcome]:
        """Put the originals of the last repair back."""
        steps, problems, back = self.undoable, [], 0
        with self.writing_from_page():
            for number, step in enumerate(steps):
                yield Progress(done=number, total=len(steps), note=step.kept[0][0].name)
                try:
                    back += len(undo(step))
                except TiFixError as error:
                    problems.append(str(error))
            self.undoable = ()
            text = f"{_count(back, 'original')} put back." if back else "Nothing was put back."
            yield from self._after(Outcome(text=text, problems=tuple(problems)))

    def extract(self, name: str, path: Path) -> list[Path]:
        """Write the embeddings that a file carries into the first embeddings folder; the caller holds `writing`.

        Raises:
            TiFixError: it cannot be read, or carries none.
        """
        parsed = read(path)
        judged = Judged(parsed=parsed, result=repair(parsed, family=self.library.family))
        try:
            written = write_clean(judged, self.output_folder, extract_bundled=True)
        except OSError as error:
            raise TiFixError(f"{name} cannot be read ({error.strerror}); check the file.") from error
        if not written:
            raise TiFixError(f"{name} holds no embedding that can be used.")
        return written

    def extract_events(self, name: str, path: Path) -> Iterator[Progress | Outcome]:
        """Write the embeddings that a file carries into the first embeddings folder."""
        with self.writing_from_page():
            yield Progress(done=0, total=1, note=name)
            written = self.extract(name, path)
            names = ", ".join(each.stem for each in written)
            text = f"{_count(len(written), 'embedding')} taken out of {name}: {names}. Write the name in a prompt."
            yield from self._after(Outcome(text=text))

    def look_through_loras(self, stop: threading.Event) -> Iterator[Progress | Outcome]:
        """Find the LoRAs that bring embeddings along."""
        found: dict[str, Path] = {}
        paths = [(folder, path) for folder in self.host.lora_folders for path in files_in(folder)]
        for number, (folder, path) in enumerate(paths):
            yield Progress(done=number, total=len(paths), note=path.name)
            if stop.is_set():
                break
            with contextlib.suppress(TiFixError, OSError):  # what cannot be read carries nothing
                count = len(extract(path))
                if count:
                    found[f"{path.relative_to(folder).as_posix()} ({count})"] = path
        self._carriers = found
        yield Outcome(text=f"{len(paths):,} looked through, {_count(len(found), 'LoRA')} with embeddings.")

    def carrier(self, choice: str) -> Path:
        """The LoRA behind a choice of `carriers`.

        Raises:
            TiFixError: it is none of them.
        """
        if choice not in self._carriers:
            raise TiFixError("Choose a LoRA first: press Look through my LoRAs, then pick one of the list.")
        return self._carriers[choice]

    def export(self, entry: Entry, form: str) -> tuple[list[Path], str]:
        """Write it in another program's form into a temporary folder, for download.

        Returns:
            The files, and how they are used there.

        Raises:
            TiFixError: that program takes no such embedding.
        """
        embeddings = list(clean(self.library.load(entry), split_long=True))
        if not embeddings:
            raise WrongUse(f"{entry.where[0]} cannot be used, so it cannot be exported; its details say why.")
        folder = Path(tempfile.mkdtemp(prefix="ti_fix_export_"))
        files = [path for each in embeddings for path in export(each, folder, form)]
        return files, " ".join(dict.fromkeys(usage(each, form) for each in embeddings))

    def to_repair(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that a repair on disk makes better."""
        return [entry for entry in entries if repairable(entry.judged) and entry.confined]

    def _after(self, outcome: Outcome) -> Iterator[Progress | Outcome]:
        """Read the list again and tell the host, then say what it came to."""
        yield from self.library.refresh()
        yield Progress(
            done=0, total=0, note="The WebUI reads its embeddings again, after a picture that is being made."
        )
        try:
            self.host.refresh_embeddings()
        except Exception:  # the host's own code: the files are written, only the list in the host is old
            logging.getLogger("ti_fix").exception("the WebUI could not read its embeddings again")
            outcome = Outcome(
                text=outcome.text,
                problems=(*outcome.problems, "The WebUI did not read its embeddings again; press its own refresh."),
            )
        yield outcome


def _repaired(done: Sequence[Replaced], stopped: bool) -> str:
    kept = sum(len(each.kept) for each in done)
    start = "Stopped. " if stopped else ""
    if not done:
        return f"{start}Nothing was repaired."
    where = done[0].kept[0][1].parent
    them = "it" if kept == 1 else "them"
    return (
        f"{start}{_count(len(done), 'embedding')} repaired on disk. {_count(kept, 'original')} kept in {where}; "
        f"to go back, press Undo the last repair, or move {them} back by hand and drop the .bak."
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_desk: Desk | None = None
_making = threading.Lock()


def desk_of(host: PageHost) -> Desk:
    """The desk of this process; a host that comes after a reload takes the place of the former."""
    global _desk  # noqa: PLW0603 - one process, one WebUI: a job must be found again after its pages were rebuilt
    with _making:
        if _desk is None:
            _desk = Desk(host)
        elif _desk.host is not host:
            _desk.take_over(host)
        return _desk
