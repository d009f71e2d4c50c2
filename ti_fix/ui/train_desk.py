"""Training as pages and API share it: one run at a time, its live record, its pictures, and the runs before it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ti_fix.align import align
from ti_fix.embedding import Embedding, Finding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import read
from ti_fix.formats.write import file_name, write
from ti_fix.jobs import Job, Progress
from ti_fix.protocols import Host
from ti_fix.train import CheckpointEvent, DoneEvent, PrepareEvent, TrainConfig
from ti_fix.train.config import check
from ti_fix.train.dataset import pictures_in
from ti_fix.train.history import Run, at_step, runs
from ti_fix.ui.host import Captioner, PageHost
from ti_fix.ui.progress import Outcome
from ti_fix.ui.train_captions import written
from ti_fix.ui.train_live import Live, progress_of
from ti_fix.ui.train_pictures import Album, new_album

if TYPE_CHECKING:
    from ti_fix.train import Event

PICTURES, RUNS = "ti_fix_pictures", "ti_fix_runs"
"""Folders beside the embeddings folder: hosts would take the embeddings of a run's steps for triggers, and look for
embeddings inside pictures. What was learned is written into the embeddings folder."""


class NameTaken(WrongUse):
    """There is an embedding of that name, and overwriting was not asked for."""


class TrainDesk:
    """See the module.

    Args:
        host: the program that the pages live in.
    """

    def __init__(self, host: PageHost) -> None:
        self.host = host
        self.job = Job()
        self.checking = Job()
        self.captioning = Job()
        self.live: Live | None = None
        self.found: Live | None = None
        self._save, self._saving = threading.Event(), False
        self._album: Album | None = None

    @property
    def embeddings(self) -> Path:
        """Where results go: the first embeddings folder, so that prompts can call them.

        Raises:
            TiFixError: the host has none.
        """
        folders = self.host.embedding_folders
        if not folders:
            raise TiFixError("The WebUI has no embeddings folder; set one with --embeddings-dir and restart it.")
        return Path(folders[0])

    @property
    def folder(self) -> Path:
        """Where runs keep their states, logs, previews and the embeddings of their steps."""
        return self.embeddings.resolve().parent / RUNS

    @property
    def pictures(self) -> Path:
        """Where uploaded pictures are kept, a folder for each set."""
        return self.embeddings.resolve().parent / PICTURES

    def place(self, name: str) -> Path:
        """The file of what is learned under a name."""
        return self.embeddings / f"{file_name(name)}.safetensors"

    @property
    def album(self) -> Album:
        """Where the pictures that are uploaded now go."""
        if self._album is None:
            self._album = new_album(self.pictures)
        return self._album

    def begin_album(self, folder: Path | None = None) -> None:
        """Go on with an empty album, or with the folder of an earlier one."""
        self._album = None if folder is None else Album(folder=folder)

    def defaults(self) -> TrainConfig:
        """Settings for the loaded model that most runs can keep."""
        return TrainConfig(resolution=self.host.picture_size(), preview_every=100, checkpoint_every=100)

    def start(self, config: TrainConfig, past: Live | None = None) -> None:
        """Begin a run; returns at once.

        Args:
            config: the settings; `out` is chosen here.
            past: the record of an earlier part of the run, to go on with.

        Raises:
            Busy: a run goes on.
            NameTaken: see there.
            TiFixError: the settings cannot be carried out.
        """
        config = replace(config, out=str(self.folder))
        check(config)
        self._refuse_taken(config)
        pictures_in(config.folders)  # a folder that is not there is told at once
        config = replace(config, overwrite=True)  # what lies in the run's own folder is an older run of it
        live = past.go_on(config) if past else Live(config=config)
        self._save.clear()
        self.job.start(f"Training {config.name}", lambda stop: self._events(live, stop), run=self._carry_out)
        self.live = live

    def check(self, config: TrainConfig) -> None:
        """Look at everything before a run, without one.

        Raises:
            Busy: a run or another look goes on.
            NameTaken: see there.
            TiFixError: the settings cannot be carried out.
        """
        if self.job.state.active:
            raise WrongUse("A training runs; wait for it or stop it, then check again.")
        check(config)
        self._refuse_taken(config)
        found = Live(config=config, look=True)
        self.checking.start("Checking", lambda stop: self._look(found, stop), run=self.host.training_host().run)
        self.found = found

    def caption(self, captioner: Captioner, paths: Sequence[Path]) -> None:
        """Have the host caption pictures; returns at once.

        Raises:
            Busy: it does that already.
            WrongUse: a run goes on, and has the model.
        """
        if self.job.state.active:
            raise WrongUse("A training runs; wait for it or stop it, then let captions be written.")
        self.captioning.start(
            "Writing captions", lambda stop: written(captioner, paths, stop), run=self.host.training_host().run
        )

    def _refuse_taken(self, config: TrainConfig) -> None:
        place = self.place(config.name)
        if place.exists() and not (config.overwrite or config.resume):
            raise NameTaken(f"{place.name} exists already; choose another name, or allow overwriting.")

    def stop(self) -> None:
        """End the run after its step; its files are written."""
        for job in (self.job, self.checking, self.captioning):
            job.stop()

    def pause(self) -> None:
        """End the run after its step so that the WebUI is free; `resume` goes on from there."""
        if self.live is not None and self.job.state.active:
            self.live.paused = True
            self.job.stop()

    def save_now(self) -> None:
        """Write the vectors of this step, usable in prompts as NAME-STEP.

        Raises:
            WrongUse: nothing runs.
        """
        if not self.job.state.active:
            raise WrongUse("No training runs, so there is nothing to save.")
        self._save.set()

    def resume(self, config: TrainConfig | None = None) -> None:
        """Go on with the paused run, or with an earlier one's settings.

        Raises:
            WrongUse: there is nothing to go on with.
        """
        if config is None:
            if self.live is None:
                raise WrongUse("No training was paused; choose a run of the list below.")
            config = self.live.config
        before = next((run for run in self.runs() if run.config.name == config.name), None)
        paused = self.live if self.live and self.live.config.name == config.name else None
        past = paused or (Live(config=config, fixed=list(before.curve)) if before else None)
        self.start(replace(config, resume=True), past)

    def runs(self) -> list[Run]:
        """Earlier runs, newest first; those that the command line has written into the embeddings folder too."""
        found = (*runs(self.folder), *runs(self.embeddings))
        return sorted(found, key=lambda run: -run.when)

    def use_step(self, run: Run, step: int | None) -> Path:
        """Make the embedding of an earlier step, or for None the run's result, the one that prompts call, at once.

        Returns:
            Its file.

        Raises:
            TiFixError: that step was not kept, or the file cannot be read or written.
        """
        path = write(at_step(run, step), self.place(run.config.name), overwrite=True)
        self.host.refresh_embeddings()
        return path

    def _carry_out(self, work: Callable[[], None]) -> None:
        """In the host's own way; then, without its lock, let prompts find what was written."""
        try:
            self.host.training_host().run(work)
        finally:
            try:
                self.host.refresh_embeddings()
            except Exception:  # the host's own code: the files are written, only the list in the host is old
                logging.getLogger("ti_fix").exception("the WebUI could not read its embeddings again")

    def _events(self, live: Live, stop: threading.Event) -> Iterator[Event | Progress | Outcome]:
        from ti_fix.train import Log, gather, train  # the WebUI waits for this module at its start

        yield Progress(done=0, total=0, note="Getting the model ready")
        host = self.host.training_host()
        events = train(
            live.config,
            host.model(),
            gather(live.config),
            stop=lambda: self._stopped(stop, host),
            save=self._asked_to_save,
            generate=host.generate,
            fit=self.host.fit,
            publish=self.host.publish,
            judge=self._wrong_with_model,
        )
        with Log(live.config) as log, closing(events):
            for each in events:
                if isinstance(each, PrepareEvent) and self._stopped(stop, host):  # before a step it would not be asked
                    break
                event = self._published(each, live)
                log.add(event)
                live.add(event)
                yield event
                progress = progress_of(event)
                if progress is not None:
                    yield progress
        yield Outcome(text=_ending(live))

    def _wrong_with_model(self) -> list[Finding]:
        """What should be known of the loaded model's text encoders before a run; an error stops it."""
        model = self.host.text_model()
        return [] if model is None else [each for each in align(model).findings if each.severity != "note"]

    def _published(self, event: Event, live: Live) -> Event:
        """What was learned, and a step that the user asked for, also where prompts find them."""
        if isinstance(event, DoneEvent):
            path = self._write(event.embedding, live.config.name)
            return replace(event, path=path)
        if isinstance(event, CheckpointEvent) and event.kind == "final":
            return replace(event, path=self.place(live.config.name))
        if isinstance(event, CheckpointEvent) and event.kind == "step" and self._saving:
            self._saving = False
            parsed = read(event.path)
            if parsed.embedding is not None:
                return replace(event, path=self._write_file(parsed.embedding, f"{live.config.name}-{event.step}"))
        return event

    def _write(self, embedding: Embedding, name: str) -> Path:
        return self._write_file(self.host.publish(embedding), name)

    def _write_file(self, embedding: Embedding, name: str) -> Path:
        place = self.place(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        return write(replace(embedding, name=name), place, overwrite=True)

    @staticmethod
    def _stopped(stop: threading.Event, host: Host) -> bool:
        """Whether the page or the host's own Interrupt wants the end."""
        if host.interrupted():
            stop.set()
        return stop.is_set()

    def _asked_to_save(self) -> bool:
        self._saving = self._save.is_set()
        self._save.clear()
        return self._saving

    def _look(self, found: Live, stop: threading.Event) -> Iterator[Any]:
        from ti_fix.train import gather, look
        from ti_fix.ui.train_tokens import token_view

        yield Progress(done=0, total=0, note="Getting the model ready")
        host = self.host.training_host()
        model, data = host.model(), gather(found.config)
        found.tokens = token_view(self.host, found.config, data)
        with closing(look(found.config, model, data, fit=self.host.fit, judge=self._wrong_with_model)) as events:
            for event in events:
                if self._stopped(stop, host):
                    return
                found.add(event)
                yield event
                progress = progress_of(event)
                if progress is not None:
                    yield progress
        yield Outcome(text="Ready to train.")


def _ending(live: Live) -> str:
    done = live.done
    if done is None:
        return "Stopped before the first step; nothing was trained."
    if live.paused:
        return f"Paused at step {done.step:,}. The model is free for pictures; press Resume to go on."
    how = {"finished": "Finished", "stopped": "Stopped", "plateau": "Finished, as it got no better,"}[done.reason]
    return (
        f"{how} after {done.step:,} steps; the vectors are those of step {done.best_step:,}. "
        f"Write {live.config.name} in a prompt."
    )
