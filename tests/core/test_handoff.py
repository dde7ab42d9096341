"""Work that waits lets its caller continue, but the two never run at the same time."""

import threading
from concurrent.futures import Future

import pytest

from paradecode.core.handoff import Handoff, Stopped, wait_for


def test_work_that_need_not_wait_ends_at_once() -> None:
    found: list[int] = []
    handoff = Handoff()
    handoff.run(lambda: found.append(1))
    assert (found, handoff.waits) == ([1], False)
    ready: Future[int] = Future()
    ready.set_result(2)
    handoff.run(lambda: found.append(wait_for(ready)))
    assert found == [1, 2]
    assert wait_for(ready) == 2  # Outside of any work it is the plain result.


def test_what_work_raises_is_raised() -> None:
    def fail() -> None:
        raise KeyError("x")

    handoff = Handoff()
    with pytest.raises(KeyError):
        handoff.run(fail)
    handoff.run(lambda: None)


def test_the_caller_goes_on_while_work_waits() -> None:
    first: Future[str] = Future()
    second: Future[str] = Future()
    seen: list[str] = []

    def work() -> None:
        seen.append("begun")
        seen.append(wait_for(first))
        seen.append(wait_for(second))

    handoff = Handoff()
    handoff.run(work)
    handoff.go_on()  # Nothing is there yet.
    assert (seen, handoff.waits) == (["begun"], True)
    first.set_result("one")
    assert seen == ["begun"]  # It has its turn when it is given one.
    handoff.go_on()
    assert (seen, handoff.waits) == (["begun", "one"], True)
    second.set_exception(ValueError("late"))
    with pytest.raises(ValueError, match="late"):
        handoff.go_on()
    assert not handoff.waits


def test_work_that_nobody_wants_ends_where_it_waits() -> None:
    ended: list[type] = []
    never: Future[int] = Future()

    def work() -> None:
        try:
            wait_for(never)
        except Stopped:
            ended.append(Stopped)
            wait_for(never)  # It may not hold out.

    handoff = Handoff()
    before = threading.active_count()
    handoff.run(work)
    handoff.stop()
    assert (ended, handoff.waits) == ([Stopped], False)
    handoff.stop()
    assert threading.active_count() <= before + 1
