from __future__ import annotations

import logging
import threading

import pytest

from ti_fix.errors import TiFixError
from ti_fix.jobs import FAULT, KEPT_EVENTS, Busy, Job, Progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def steps(total, gate=None):
    def events(stop):
        for i in range(total):
            if gate is not None:
                assert gate.acquire(timeout=10)
            yield Progress(done=i + 1, total=total, note=f"step {i + 1}")

    return events


def test_it_runs_to_its_end_and_keeps_the_events():
    job = Job()
    job.start("count", steps(3))
    state = job.wait(10)
    assert (state.status, state.title, state.progress) == ("done", "count", Progress(done=3, total=3, note="step 3"))
    assert [e.done for e in job.events()] == [1, 2, 3]
    assert [e.done for e in job.events(after=2)] == [3]


def test_all_steps_run_in_one_thread_that_is_not_the_callers():
    seen = []

    def events(stop):
        for _ in range(5):
            seen.append(threading.current_thread())
            yield 1

    job = Job()
    job.start("threads", events)
    for _ in job.watch(0.01):
        pass
    assert len(set(seen)) == 1
    assert seen[0] is not threading.current_thread()


def test_the_host_decides_where_it_runs():
    order = []

    def host_run(work):
        order.append("lock")
        work()
        order.append("unlock")

    job = Job()
    job.start("hosted", lambda stop: (order.append(i) or i for i in range(2)), run=host_run)
    assert job.wait(10).status == "done"
    assert order == ["lock", 0, 1, "unlock"]


def test_only_one_at_a_time():
    gate, job = threading.Semaphore(0), Job()
    job.start("first", steps(1, gate))
    with pytest.raises(Busy, match="'first' is still running"):
        job.start("second", steps(1))
    gate.release()
    assert job.wait(10).status == "done"
    job.start("second", steps(1))
    state = job.wait(10)
    assert (state.title, state.number) == ("second", 2)


def test_stop_lets_the_work_end_in_good_order():
    gate, job = threading.Semaphore(0), Job()

    def events(stop):
        for event in steps(100, gate)(stop):
            yield event
            if stop.is_set():
                break
        yield "saved"

    job.start("long", events)
    gate.release()
    while job.state.events < 1:
        pass
    job.stop()
    assert job.state.status == "stopping"
    gate.release()
    state = job.wait(10)
    assert state.status == "stopped"
    assert state.progress.done <= 2
    assert job.events()[-1] == "saved"


def test_stop_without_a_job_is_nothing():
    job = Job()
    job.stop()
    assert job.state.status == "idle"
    assert [s.status for s in job.watch()] == ["idle"]


def test_an_error_for_the_user_is_told_as_it_is():
    def events(stop):
        yield 1
        raise TiFixError("The disk is full; free some space.")

    job = Job()
    job.start("write", events)
    state = job.wait(10)
    assert (state.status, state.message) == ("failed", "The disk is full; free some space.")


def test_a_fault_of_ours_is_logged_and_told_without_a_trace(caplog):
    job = Job()
    with caplog.at_level(logging.ERROR, "ti_fix"):
        job.start("broken", lambda stop: iter([1 // 0]))
        state = job.wait(10)
    assert (state.status, state.message) == ("failed", FAULT)
    assert "ZeroDivisionError" in caplog.text
    job.start("next", steps(1))
    assert job.wait(10).status == "done"


def test_a_page_that_comes_later_finds_it_again():
    gate, job = threading.Semaphore(0), Job()
    job.start("long", steps(3, gate))
    first = job.watch(0.01)
    assert next(first).active
    first.close()
    gate.release(3)
    assert [s.status for s in job.watch(0.01)][-1] == "done"


def test_time_left_follows_the_pace():
    clock, gate = Clock(), threading.Semaphore(0)
    job = Job(clock=clock)
    job.start("paced", steps(10, gate))
    assert job.state.seconds_left is None
    for second in (2.0, 4.0, 6.0):
        clock.now = second
        gate.release()
        while job.state.progress.done < second / 2:
            pass
    assert job.state.seconds_left == pytest.approx(14.0)
    clock.now = 7.0
    assert job.state.seconds_left == pytest.approx(13.0)
    assert job.state.seconds == 7.0
    gate.release(7)
    assert job.wait(10).seconds_left is None


def test_old_events_are_forgotten_not_renumbered():
    job = Job()
    job.start("many", lambda stop: iter(range(KEPT_EVENTS + 5)))
    state = job.wait(30)
    assert state.events == KEPT_EVENTS + 5
    assert job.events(after=KEPT_EVENTS + 3) == [KEPT_EVENTS + 3, KEPT_EVENTS + 4]
    assert job.events()[0] == 5
