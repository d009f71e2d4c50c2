"""Long work in one worker thread of its own, for pages that come and go.

Gradio advances a handler's generator in whichever thread is free, and grad mode belongs to a thread; so nothing that
computes runs inside a handler. A `Job` runs an iterator of events from its first to its last step in one thread;
pages only look at it, may be closed, and find it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ti_fix.errors import TiFixError

Status = Literal["idle", "running", "stopping", "done", "stopped", "failed"]

KEPT_EVENTS = 10_000
"""Events that a page which is opened later can still see."""

ETA_WINDOW = 60.0
"""Seconds of the past from which the time left is estimated, so that a slow start does not spoil it."""

FAULT = (
    "It stopped because of a fault in ti_fix; nothing half-done was left behind. The console of the WebUI shows where: "
    "please report those lines."
)


class Busy(TiFixError):
    """Another job is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An event that says how far the work is.

    Attributes:
        done, total: pieces of work; a total of 0 means that it is not known.
        note: what is being done now, as a few words.
    """

    done: int
    total: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a page shows of a job.

    Attributes:
        title: what the job is, as the user knows it.
        status: idle before the first job.
        progress: the newest `Progress`.
        seconds: since it started, until now or until it ended.
        seconds_left: estimate, None while there is nothing to go by.
        message: why it failed, as a sentence for the user.
        events: how many events there have been.
        number: which job of this place it is, counted from 1; 0 before the first.
    """

    title: str = ""
    status: Status = "idle"
    progress: Progress = Progress(done=0, total=0)
    seconds: float = 0.0
    seconds_left: float | None = None
    message: str = ""
    events: int = 0
    number: int = 0

    @property
    def active(self) -> bool:
        """Whether it still runs."""
        return self.status in ("running", "stopping")


class Job:
    """A place where one piece of long work runs at a time.

    Args:
        clock: seconds from some start; for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._state = JobState()
        self._events: deque[Any] = deque(maxlen=KEPT_EVENTS)
        self._pace: deque[tuple[float, int]] = deque()
        self._started = 0.0
        self._thread: threading.Thread | None = None

    def start(
        self,
        title: str,
        events: Callable[[threading.Event], Iterable[Any]],
        *,
        run: Callable[[Callable[[], None]], Any] | None = None,
    ) -> None:
        """Begin; returns at once.

        Args:
            title: what the user calls it.
            events: makes the iterator; called in the worker thread with the stop signal. The iterator looks at the
                signal between two steps and then ends in good order: what is done is saved and told.
            run: carries the work out where and when the host wants it (`Host.run`).

        Raises:
            Busy: another job runs here.
        """
        with self._changed:
            if self._state.active:
                raise Busy(f"{self._state.title!r} is still running; wait for it or stop it, then try again.")
            self._stop = threading.Event()
            self._events.clear()
            self._pace.clear()
            self._started = self._clock()
            self._state = JobState(title=title, status="running", number=self._state.number + 1)
            work = partial(self._consume, events, self._stop)
            carried_out = work if run is None else partial(run, work)
            self._thread = threading.Thread(
                target=self._guarded, args=(carried_out,), name=f"ti_fix {title}", daemon=True
            )
            self._thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask it to end; it does so after the step that it is in."""
        with self._changed:
            if self._state.status == "running":
                self._stop.set()
                self._state = replace(self._state, status="stopping")
                self._changed.notify_all()

    @property
    def state(self) -> JobState:
        with self._changed:
            if not self._state.active:
                return self._state
            return replace(self._state, seconds=self._clock() - self._started, seconds_left=self._left())

    def events(self, after: int = 0) -> list[Any]:
        """The events from number `after` (counted from 0) on, as far as they are kept."""
        with self._changed:
            forgotten = self._state.events - len(self._events)
            return list(self._events)[max(0, after - forgotten) :]

    def watch(self, every: float = 0.5) -> Iterator[JobState]:
        """The state now, after `every` seconds or when it ends, and at last the final one.

        Looking stops nothing and can be given up at any time.
        """
        while True:
            state = self.state
            yield state
            if not state.active:
                return
            with self._changed:
                self._changed.wait_for(lambda: not self._state.active, timeout=every)

    def wait(self, seconds: float | None = None) -> JobState:
        """The final state, or the state after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._state.active, timeout=seconds)
        return self.state

    def _guarded(self, work: Callable[[], Any]) -> None:
        status: Status = "failed"
        message = FAULT
        try:
            work()
            status, message = ("stopped" if self._stop.is_set() else "done"), ""
        except TiFixError as error:
            message = str(error)
        except Exception:
            logging.getLogger("ti_fix").exception("%s failed", self._state.title)
        finally:
            with self._changed:
                seconds = self._clock() - self._started
                self._state = replace(self._state, status=status, message=message, seconds=seconds, seconds_left=None)
                self._changed.notify_all()

    def _consume(self, events: Callable[[threading.Event], Iterable[Any]], stop: threading.Event) -> None:
        for event in events(stop):
            self._note(event)

    def _note(self, event: Any) -> None:
        with self._changed:
            self._events.append(event)
            state = replace(self._state, events=self._state.events + 1)
            if isinstance(event, Progress):
                state = replace(state, progress=event)
                now = self._clock()
                self._pace.append((now, event.done))
                while len(self._pace) > 2 and now - self._pace[0][0] > ETA_WINDOW:
                    self._pace.popleft()
            self._state = state

    def _left(self) -> float | None:
        """Seconds until the end at the pace of the last minute."""
        progress = self._state.progress
        if not self._pace or not progress.total:
            return None
        since, at_first = self._pace[0] if len(self._pace) > 1 else (self._started, 0)
        until, now_done = self._pace[-1]
        if now_done <= at_first or until <= since:
            return None
        whole = (progress.total - now_done) * (until - since) / (now_done - at_first)
        return max(0.0, whole - (self._clock() - until))
