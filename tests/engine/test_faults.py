"""One request's failure never touches another, and never costs a page."""

from __future__ import annotations

from collections.abc import Sequence

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
    served,
    served_beside_another,
    toy_engine,
)

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import Forward, Steps, Store, TokenSequence, Verdict
from paradecode.core.errors import BackendError, DecoderError
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend

POISON = 0


class Fragile(ToyBackend):
    """Fails whenever a span carries the poisonous token."""

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        if any(POISON in span.tokens for span in spans):
            raise BackendError("poisoned")
        return super().forward(spans)


class Sick(ToyBackend):
    """Gives NaN for rows of the poisonous token."""

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


def test_a_decoder_that_raises_ends_its_request_only() -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        raise KeyError("a bug")

    bad = served_beside_another(decode)
    assert isinstance(bad.error, KeyError)


@pytest.mark.parametrize("junk", [42, None, [], [42], "text", ()])
def test_junk_is_refused(junk: object) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield junk  # type: ignore[misc]

    bad = served_beside_another(decode)
    assert isinstance(bad.error, DecoderError)


def test_a_decoder_that_ends_too_soon_is_an_error() -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)

    bad = served(decode)
    assert isinstance(bad.error, DecoderError)


def test_a_decoder_that_never_commits_is_stopped() -> None:
    def decode(seq: TokenSequence) -> Steps:
        while True:
            yield negative()

    engine = toy_engine()
    bad = add(engine, decode)
    finish(engine, steps=5000)
    assert isinstance(bad.error, DecoderError)


@pytest.mark.parametrize(
    "verdict",
    [([], []), ([5], []), ([5, 6], [0])],
)
def test_malformed_commits_are_refused(verdict: tuple[list[int], list[int]]) -> None:
    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(Verdict(*verdict, reply.logits))

    bad = served(decode)
    assert isinstance(bad.error, DecoderError)
    assert bad.output == []


class NoNetworks(ToyBackend):
    def apply(self, network: object, items: object) -> list[np.ndarray]:
        raise ZeroDivisionError


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
