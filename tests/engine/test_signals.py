"""Ctrl-C, finalizers and errors never leave an operation of the engine half-done."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from driving import add, by, finish, greedy, plainly, toy_engine
from one_by_one import add as add_spec
from one_by_one import both, engine_of

from paradecode import LLM
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import Forward, Steps, TokenSequence
from paradecode.core.errors import BackendError, DecoderError
from paradecode.core.multi_step import MultiStep
from paradecode.core.tree import EMPTY
from paradecode.engine.engine import Limits, run
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.engine.signals import delayed_signals
from paradecode.methods.draft.verifiers import coupled


def pressed() -> None:
    """Send Ctrl-C in the same way as the system does."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):  # Python looks for signals between instructions.
        pass


def one_step(seq: TokenSequence) -> Steps:
    reply = yield Forward(seq.pending)
    seq.commit(coupled(seq, EMPTY, reply))


def test_ctrl_c_comes_behind_the_step() -> None:
    engine, seen = toy_engine(), []

    def decode(seq: TokenSequence) -> Steps:
        yield from one_step(seq)
        pressed()
        seen.append(len(engine.running))
        yield from plainly(seq)

    first, second = add(engine, decode), add(engine)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    assert seen == [2]
    assert not engine.inside
    engine.check()
    finish(engine)
    assert [first.output, second.output] == [greedy()] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_during_a_call_of_several_steps_loses_no_token(monkeypatch):
    engine, (alone, _) = engine_of(lambda one: one), both()
    wanted = add_spec(alone, "greedy", [1, 2, 3], max_tokens=60)
    finish(alone)
    backend = engine.models["target"]
    assert isinstance(backend, NativeBackend)
    steps, calls = backend.steps, list[int]()

    def interrupted(*given: Any) -> Any:
        made = steps(*given)
        if not calls:
            pressed()
        calls.append(len(made[0]))
        return made

    monkeypatch.setattr(backend, "steps", interrupted)
    sequence = add_spec(engine, "greedy", [1, 2, 3], max_tokens=60)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    assert sum(calls) > 0
    finish(engine)
    assert sequence.output == wanted.output


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_handler_of_python_stays(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with delayed_signals():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with delayed_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


class Alarm(BaseException):
    """An exception that a signal's handler raises."""


@pytest.mark.parametrize("kind", [BackendError, Alarm])
def test_steps_that_are_lost_end_their_requests(kind, monkeypatch):
    """If a call of several steps is interrupted, its requests end and its rows are not cached.

    It is unknown how many steps the backend has made.
    """
    engine, (alone, _) = engine_of(lambda one: one), both()
    backend = engine.models["target"]
    assert isinstance(backend, NativeBackend)
    steps = backend.steps

    def broken(*given: Any) -> Any:
        steps(*given)
        raise kind("lost")

    sequences = [add_spec(engine, "greedy", [1, 2, 3 + i], max_tokens=60) for i in range(2)]
    monkeypatch.setattr(backend, "steps", broken)
    if kind is Alarm:
        with pytest.raises(Alarm):
            finish(engine)
    finish(engine)
    wanted = BackendError if kind is BackendError else DecoderError
    assert all(isinstance(one.error, wanted) for one in sequences)
    engine.check()
    assert engine.pools["target"].held == 0
    monkeypatch.setattr(backend, "steps", steps)
    again = add_spec(engine, "greedy", [1, 2, 3], max_tokens=60)
    expected = add_spec(alone, "greedy", [1, 2, 3], max_tokens=60)
    finish(engine)
    finish(alone)
    assert again.output == expected.output


@pytest.mark.parametrize("what", ["steps", "hidden"])
def test_a_method_that_fails_in_front_of_several_steps_ends_alone(what: str) -> None:
    engine, (alone, _) = engine_of(lambda one: one), both()
    asked = []

    def fails() -> Any:
        asked.append(what)
        if what == "hidden" or len(asked) > 1:
            raise ValueError("my own mistake")
        return 4

    def decode(seq: TokenSequence) -> Steps:
        several = MultiStep(steps=fails) if what == "steps" else MultiStep(hidden=fails)
        while not seq.finished:
            if not (yield several).count:
                yield from one_step(seq)

    good = add_spec(engine, "greedy", [1, 2, 3], max_tokens=60)
    bad = add(engine, decode, (5, 6, 7), max_tokens=60)
    wanted = add_spec(alone, "greedy", [1, 2, 3], max_tokens=60)
    finish(engine)
    finish(alone)
    assert isinstance(bad.error, ValueError)
    assert good.output == wanted.output


def test_what_is_dropped_during_a_step_ends_behind_it() -> None:
    engine, sequences = toy_engine(), list[LiveSequence]()

    def decode(seq: TokenSequence) -> Steps:
        yield from one_step(seq)
        engine.drop(sequences[1])
        engine.settle()
        assert not sequences[1].finished
        yield from plainly(seq)

    sequences += [add(engine, decode), add(engine)]
    engine.step()
    assert sequences[1].finish_reason == "cancelled"
    finish(engine)
    assert sequences[0].output == greedy()
    engine.drop(sequences[0])  # It has ended by itself.
    engine.settle()
    assert sequences[0].finish_reason == "length"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    sizes = Limits(batch=8, kv_tokens=4096)
    with LLM("paradecode/tiny-autoregressive", limits=sizes) as opened:
        yield opened


def test_forgotten_streams_are_collected_in_the_middle_of_others(llm: LLM) -> None:
    """A stream in a reference cycle ends whenever Python collects garbage."""

    class Holder:
        stream: Any = None
        me: Any = None

    wanted = llm.complete("import os", max_tokens=30).token_ids
    threshold = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(20):
            holder = Holder()
            holder.stream = llm.stream(llm.encode("def foo(bar):"), max_tokens=100)
            holder.me = holder
            next(holder.stream)
            del holder
            assert llm.complete("import os", max_tokens=30).token_ids == wanted
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    llm.complete("import os", max_tokens=1)
    assert not llm.engine.busy
    assert llm.engine.pools["target"].held == 0


def test_a_closed_stream_gives_its_pages_back_at_once(llm: LLM) -> None:
    stream = llm.stream(llm.encode("def foo(bar):"), max_tokens=100)
    next(stream)
    assert llm.engine.busy
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.busy


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_stream_has_every_token_once_whoever_steps_the_engine(llm, logprobs):
    stream = llm.stream(llm.encode("def foo("), max_tokens=40, ignore_eos=True, logprobs=logprobs)
    chunks = [next(stream)]
    llm.complete("import os", max_tokens=200, ignore_eos=True)
    chunks += stream
    completion = chunks[-1].completion
    assert [token for chunk in chunks for token in chunk.token_ids] == completion.token_ids
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert len(completion.token_ids) == 40


def test_what_was_added_during_ctrl_c_is_not_there() -> None:
    engine = toy_engine()
    push = engine.queue.push

    def interrupted(live: Any) -> None:
        pressed()
        push(live)

    engine.queue.push = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        add(engine)
    assert not engine.busy


def test_requests_of_an_interrupted_run_are_cancelled() -> None:
    engine = toy_engine()

    def decode(seq: TokenSequence) -> Steps:
        yield from one_step(seq)
        pressed()
        yield from plainly(seq)

    request = GenerationRequest(np.array([5, 6, 7], np.int32), by(decode))
    with pytest.raises(KeyboardInterrupt):
        run(engine, [request])
    assert not engine.busy
    assert engine.pools["target"].held == 0
