"""A request's failure never affects another request, and never loses a page."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from driving import (
    LOOP,
    PROMPT,
    add,
    finish,
    greedy,
    negative,
    plainly,
    served_beside_another,
    toy_engine,
)

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import Fork, Forward, Steps, Store, TokenSequence, Verdict
from paradecode.core.errors import BackendError, DecoderError
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend

POISON = 0


class Fragile(ToyBackend):
    """A toy backend that fails whenever a span has the poisonous token."""

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        if any(POISON in span.tokens for span in spans):
            raise BackendError("poisoned")
        return super().forward(spans)


class Sick(ToyBackend):
    """A toy backend that gives NaN for rows of the poisonous token."""

    bad = np.nan

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        results = super().forward(spans)
        for span, result in zip(spans, results):
            if POISON in span.tokens:
                assert isinstance(result.logits, ArrayLogits)
                result.logits.values[:] = self.bad
        return results


def test_a_failing_span_ends_its_request_only() -> None:
    engine = toy_engine({"target": Fragile()})
    good = [add(engine) for _ in range(3)]
    bad = add(engine, prompt=(5, POISON, 6))
    engine.step()
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, BackendError)
    finish(engine)
    assert [sequence.output for sequence in good] == [greedy()] * 3


def test_a_failure_in_mid_text_keeps_the_tokens_so_far() -> None:
    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        yield Forward(np.array([POISON], np.int32), store=Store.NONE)

    bad = served_beside_another(decode, toy_engine({"target": Fragile()}))
    assert (bad.finish_reason, bad.output) == ("error", greedy(count=1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_unusable_logits_are_an_error_of_that_request(value: float, temperature: float) -> None:
    toy = Sick()
    toy.bad = value
    engine = toy_engine({"target": toy})
    bad = add(engine, prompt=(5, POISON, 6), temperature=temperature)
    good = add(engine)
    finish(engine)
    assert isinstance(bad.error, BackendError)
    assert bad.output == []
    assert good.output == greedy()


def asks(*requests: Any) -> Callable[[TokenSequence], Steps]:
    """Make a decoder that yields the given requests, or functions of the sequence, and ends."""

    def decode(seq: TokenSequence) -> Steps:
        for one in requests:
            yield one(seq) if callable(one) else one

    return decode


def commits(*verdict: list[int]) -> Callable[[TokenSequence], Steps]:
    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(Verdict(*verdict, reply.logits))

    return decode


def prompt(seq: TokenSequence) -> Forward:
    return Forward(seq.pending)


CHILD = TokenTree.chain([4])
NO_DECODERS: dict[str, Callable[[TokenSequence], Steps]] = {
    **{repr(junk): asks(junk) for junk in (42, None, [], [42], "text", ())},
    "it ends too soon": asks(prompt), "it never commits": asks(*[negative()] * 5000),
    "it forks for ever": asks(*[Fork(1)] * 5000),
    "two that write": asks(lambda seq: [prompt(seq), prompt(seq)]),
    "no such parent": asks(lambda seq: Forward(seq.pending, tree=CHILD, under=np.array([3]))),
    **{f"commit {verdict}": commits(*verdict) for verdict in (([], []), ([5], []), ([5, 6], [0]))},
}  # fmt: skip


@pytest.mark.parametrize("decode", NO_DECODERS.values(), ids=NO_DECODERS)
def test_what_no_decoder_does_ends_its_request_only(decode):
    bad = served_beside_another(decode, toy_engine(kv_tokens=1 << 16))
    assert isinstance(bad.error, DecoderError)
    assert bad.output == []


def test_a_decoder_that_raises_ends_its_request_only() -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        raise KeyError("a bug")

    assert isinstance(served_beside_another(decode).error, KeyError)


def test_cancelling_is_immediate_and_harmless() -> None:
    engine = toy_engine(step_tokens=8)
    first, second = add(engine, prompt=PROMPT), add(engine, prompt=LOOP)
    engine.step()
    engine.cancel(first)
    assert first.finish_reason == "cancelled"
    engine.check()
    engine.cancel(first)
    finish(engine)
    assert first.output == []
    assert second.output == greedy()


def test_closing_cancels_everything() -> None:
    engine = toy_engine(batch=1)
    sequences = [add(engine), add(engine, plainly)]
    engine.step()
    engine.close()
    assert [sequence.finish_reason for sequence in sequences] == ["cancelled"] * 2
    assert not engine.busy


def test_an_error_after_the_end_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield from plainly(seq)
        raise KeyError("too late")

    def resist(seq: TokenSequence) -> Steps:
        try:
            yield from plainly(seq)
        finally:
            raise KeyError("unwilling")

    engine = toy_engine()
    late, unwilling, good = add(engine, decode), add(engine, resist), add(engine)
    engine.step()
    engine.cancel(unwilling)
    finish(engine)
    assert (late.finish_reason, late.error) == ("length", None)
    assert late.output == good.output == greedy()
    assert isinstance(late.late_error, KeyError)
    assert isinstance(unwilling.late_error, KeyError)
    assert good.late_error is None
    assert "too late" in caplog.text
    assert "unwilling" in caplog.text
