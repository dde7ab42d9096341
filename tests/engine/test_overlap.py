"""A method may run another model during a forward of the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import pytest

from engines import asked
from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import DRAFT, TARGET, Forward, Overlap, Store, TokenSequence
from paradecode.core.sampling import SamplingParams
from paradecode.engine import forward
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend
from patience import PATIENCE


class Waits(ToyBackend):
    """A target whose forward ends when ``go`` is set."""

    def __init__(self, go: Event) -> None:
        super().__init__(seed=0)
        self.go, self.late = go, 0

    def forward(self, spans: Sequence[Span]) -> Sequence[SpanResult]:
        self.late += not self.go.wait(PATIENCE)
        self.go.clear()
        return super().forward(spans)


class Tells(ToyBackend):
    """A draft model whose forward sets ``go``, or fails."""

    def __init__(self, go: Event, fails: int = 0) -> None:
        super().__init__(seed=1)
        self.go, self.fails = go, fails

    def forward(self, spans: Sequence[Span]) -> Sequence[SpanResult]:
        self.go.set()
        if self.fails:
            raise RuntimeError("the draft model is broken")
        return super().forward(spans)


@dataclass
class Looks:
    """Plain decoding that runs the draft model during the target's forward."""

    meanwhile: Callable[[TokenSequence], Any]
    model: str = TARGET

    def decode(self, seq: TokenSequence) -> Any:
        while not seq.finished:
            verify = Forward(seq.pending, model=self.model)
            reply, found = yield Overlap(verify, self.meanwhile(seq))
            assert found == "done"
            seq.commit(coupled(seq, verify.tree, reply))


def asks(seq: TokenSequence, count: int = 2) -> Any:
    for _ in range(count):
        yield Forward(seq.pending_for(DRAFT), model=DRAFT)
        if not len(seq.pending_for(DRAFT)):
            break
    return "done"


def run(eng: Engine, decoders: Sequence[Callable[[], Any]], **given: Any) -> list[LiveSequence]:
    params = {"max_tokens": 6, "seed": 3, "ignore_eos": True, **given}
    return asked(eng, *((one, range(5, 25), params) for one in decoders))


def test_models_that_are_apart_run_at_the_same_time() -> None:
    go = Event()
    target = Waits(go)
    eng = Engine({TARGET: target, DRAFT: Tells(go)})
    eng.apart = True
    (sequence,) = run(eng, [lambda: Looks(asks)])
    assert sequence.error is None
    assert sequence.stats.generated == 6
    assert not target.late


@pytest.mark.parametrize("apart", [False, True])
def test_both_replies_come_also_where_the_prompt_is_cut(apart: bool) -> None:
    models = {TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=1)}
    eng = Engine(models, Limits(step_tokens=7))
    eng.apart = apart
    specs = [lambda: Looks(asks), parse("greedy"), parse("pearl"), parse("mirror-sd")]
    plain = run(Engine({TARGET: ToyBackend(seed=0)}), [parse("greedy")])[0].output
    found = run(eng, specs)
    assert [(one.error, one.output) for one in found] == [(None, plain)] * len(specs)


def wants_the_target(seq: TokenSequence) -> Any:
    yield Forward(seq.pending)


def breaks(seq: TokenSequence) -> Any:
    yield Forward(seq.pending_for(DRAFT), model=DRAFT)
    raise ZeroDivisionError("of the method")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("wrong", "said"), [
    (lambda: Looks(wants_the_target), "only forwards of other models"),
    (lambda: Looks(asks, DRAFT), "a forward of the target"),
    (lambda: Looks(breaks), "of the method"),
])  # fmt: skip
def test_what_goes_wrong_meanwhile_ends_its_request_only(apart, wrong, said):
    eng = Engine({TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=1)})
    eng.apart = apart
    bad, good = run(eng, [wrong, lambda: Looks(asks)])
    assert said in str(bad.error)
    assert good.error is None
    assert good.stats.generated == 6


def test_a_draft_forward_that_fails_ends_its_request() -> None:
    go = Event()
    eng = Engine({TARGET: Waits(go), DRAFT: Tells(go, fails=1)})
    eng.apart = True
    (sequence,) = run(eng, [lambda: Looks(asks)])
    assert "broken" in str(sequence.error)


def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    ended = []

    def long(seq: TokenSequence) -> Any:
        try:
            yield Forward(seq.pending_for(DRAFT), model=DRAFT)
            return "done"
        finally:
            ended.append(True)

    eng = Engine({TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=1)}, Limits(step_tokens=7))
    prompt = np.arange(5, 25, dtype=np.int32)
    sequence = eng.add(GenerationRequest(prompt, lambda: Looks(long), SamplingParams()))
    eng.step()
    assert not ended  # A part of its prompt was read.
    eng.cancel(sequence)
    eng.check()
    assert ended
    assert not eng.busy


def resists(seq: TokenSequence) -> Any:
    try:
        yield Forward(np.array([3], np.int32), model=DRAFT)  # Not its next token.
    finally:
        raise ValueError("late")


def never_ends(seq: TokenSequence) -> Any:
    while True:
        yield Forward(np.array([5], np.int32), store=Store.NONE, model=DRAFT)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("meanwhile", [resists, never_ends])
def test_what_resists_or_never_ends_costs_its_neighbour_nothing(apart, meanwhile, monkeypatch):
    monkeypatch.setattr(forward, "MAX_CALLS", 50)
    eng = Engine({TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=1)})
    eng.apart = apart
    bad, good = run(eng, [lambda: Looks(meanwhile), lambda: Looks(asks)])
    assert bad.error is not None
    assert good.error is None
    assert good.stats.generated == 6


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("spec", ["pearl", "mirror-sd"])
def test_a_step_reads_its_part_of_a_prompt_only(spec: str, apart: bool) -> None:
    rows = []

    class Counts(ToyBackend):
        def forward(self, spans: Sequence[Span]) -> Sequence[SpanResult]:
            rows[-1] += sum(len(span.positions) for span in spans)
            return super().forward(spans)

    eng = Engine({TARGET: ToyBackend(seed=0), DRAFT: Counts(seed=1)}, Limits(step_tokens=8))
    eng.apart = apart
    prompt = np.arange(100, dtype=np.int32) % 20
    sequence = eng.add(GenerationRequest(prompt, parse(spec), SamplingParams(max_tokens=8)))
    while eng.busy:
        rows.append(0)
        eng.step()
    assert sequence.error is None
    assert sum(rows) > 100
    assert max(rows) < 60  # A part, and what is drafted in the same step.


@pytest.mark.parametrize("scratch", [0, 3, 64])
@pytest.mark.parametrize(
    "spec", ["pearl(num_speculative_tokens=64)", "mirror-sd(num_speculative_tokens=40)",
             "mirror-sd(num_speculative_tokens=40,candidates=0)"],
)  # fmt: skip
def test_drafts_fit_into_what_is_set_aside(spec: str, scratch: int) -> None:
    models = {TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=0)}
    eng = Engine(models, Limits(draft_tokens=scratch))
    plain, drafted = run(eng, [parse("greedy"), parse(spec)], max_tokens=100)
    assert drafted.error is None
    assert drafted.output == plain.output


def test_forwards_count_all_models() -> None:
    eng = Engine({TARGET: ToyBackend(seed=0), DRAFT: ToyBackend(seed=0)})
    (sequence,) = run(eng, [parse("pearl")])
    assert eng.forwards > sequence.stats.forwards
