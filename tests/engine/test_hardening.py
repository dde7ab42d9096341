"""A careless or hostile decoder cannot harm the engine or other requests."""

import numpy as np
import pytest
from driving import (
    NEGATIVE,
    PROMPT,
    ToyText,
    add,
    finish,
    greedy,
    negative,
    plainly,
    served,
    toy_engine,
)
from numpy.typing import NDArray

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import Apply, Fork, Forward, Steps, Store, TokenSequence
from paradecode.core.errors import BackendError, DecoderError
from paradecode.core.layers import Half
from paradecode.core.network import Item, Network
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.verifiers import coupled
from paradecode.models.text_stream import OutputText
from paradecode.testing.toy import ToyBackend, letter

ONE = np.ones((1, 1), np.float32)


def test_a_commit_that_stays_short_of_the_draft_leaves_the_newest_token_pending() -> None:
    """A verifier may commit fewer tokens than it accepted; the newest one is then not cached.

    The next step continues from the committed text.
    """

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, tree=TokenTree.chain(greedy(count=3)))
        seq.commit(coupled(seq, EMPTY, reply))
        assert len(seq.pending) == 1
        yield from plainly(seq)

    sequence = served(decode)
    assert sequence.error is None
    assert sequence.output == greedy()


@pytest.mark.parametrize("how", ["visible", "positions", "layers", "halves"])
def test_unusual_rows_are_not_offered_to_other_requests(how: str) -> None:
    def decode(seq: TokenSequence) -> Steps:
        count = len(seq.pending)
        changes = {
            "visible": {"visible": np.empty(0, np.int32)},
            "positions": {"positions": np.arange(20, count, dtype=np.int32) + 1},
            "layers": {"layers": (1,)}, "halves": {"layers": (0, Half(1, "mlp"))},
        }  # fmt: skip
        yield Forward(seq.pending[:20])
        reply = yield Forward(seq.pending, **changes[how])  # type: ignore[arg-type]
        seq.commit(coupled(seq, EMPTY, reply))

    engine = toy_engine()
    add(engine, decode, PROMPT, 1)
    finish(engine)
    second = add(engine, plainly, PROMPT)
    finish(engine)
    assert second.output == greedy(PROMPT)


def test_rows_that_skipped_layers_are_not_kept() -> None:
    """Rows that ran through some layers only are not kept as rows of the target."""

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        while not seq.finished:
            root = yield Forward(seq.pending)
            path = TokenTree.chain(greedy((*seq.tokens.tolist(),), 2))
            yield Forward(np.empty(0, np.int32), tree=path, layers=(0,))
            seq.commit(coupled(seq, EMPTY, root))

    sequence = served(decode)
    assert sequence.error is None
    assert sequence.output == greedy()


def fork_and_adopt(seq: TokenSequence) -> Steps:
    for _ in range(3):
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
    (child,) = yield Fork(1)
    reply = yield Forward(child.pending, on=child)
    child.commit(coupled(child, EMPTY, reply))
    seq.adopt(child)
    yield from plainly(seq)


def test_adopting_keeps_the_log_probabilities() -> None:
    sequence = served(fork_and_adopt, logprobs=1)
    assert [entry.token for entry in sequence.logprobs] == sequence.output == greedy()
    assert [token for step in sequence.trace for token in step.tokens] == sequence.output


def test_adopting_does_not_send_text_twice() -> None:
    engine = toy_engine(text=True)
    sequence = add(engine, fork_and_adopt)
    pieces = []
    while engine.busy:
        engine.step()
        pieces.append("".join(commit.text for commit in sequence.take()))
    assert "".join(pieces) == "".join(letter(token) for token in greedy())


class Picky(ToyBackend):
    def apply(self, network: Network, items: list[Item]) -> list[NDArray[np.float32]]:
        if any((item["x"] < 0).any() for item in items):
            raise ValueError("negative")
        return super().apply(network, items)


def test_a_network_that_fails_on_one_input_spares_the_others() -> None:
    def decode(value: float) -> object:
        def inner(seq: TokenSequence) -> Steps:
            yield negative(value=value)
            yield from plainly(seq)

        return inner

    engine = toy_engine({"target": Picky()})
    bad, good = add(engine, decode(-1)), add(engine, decode(1))  # type: ignore[arg-type]
    finish(engine)
    assert isinstance(bad.error, ValueError)
    assert good.output == greedy()


class Failing(ToyBackend):
    def forward(self, spans: object) -> list[SpanResult]:
        raise BackendError("out of order")


def test_failures_are_news() -> None:
    """The engine reports the end of every request, whatever ended it."""

    def impossible(seq: TokenSequence) -> Steps:
        yield Forward(np.array([99], np.int32), store=Store.NONE)

    def module(seq: TokenSequence) -> Steps:
        yield Apply(NEGATIVE[2], {"x": ONE})

    for models, decode in (
        ({"target": Failing()}, plainly),
        (None, impossible),
        (None, module),
    ):
        engine = toy_engine(models)  # type: ignore[arg-type]
        sequence = add(engine, decode)
        assert sequence in engine.step()
        assert sequence.finish_reason == "error"


def test_a_finished_sequence_takes_no_pages() -> None:
    engine = toy_engine()
    sequence = add(engine, plainly, PROMPT)
    finish(engine)
    with pytest.raises(DecoderError):
        sequence.pending
    engine.check()
    assert engine.pools["target"].held == 0


@pytest.mark.parametrize("reaction", ["raises", "goes on", "looks"])
def test_a_decoder_that_resists_its_end(reaction: str) -> None:
    def decode(seq: TokenSequence) -> Steps:
        try:
            yield from plainly(seq)
        finally:
            if reaction == "raises":
                raise ValueError("no")
            if reaction == "looks":
                len(seq.pending)
            if reaction == "goes on":
                yield Forward(np.array([5], np.int32), store=Store.NONE)

    engine = toy_engine()
    bad, good = add(engine, decode, PROMPT), add(engine)
    engine.step()
    engine.step()
    engine.cancel(bad)
    finish(engine)
    assert bad.output == greedy(PROMPT, 2)
    assert good.output == greedy()


def test_a_draft_beyond_what_was_set_aside_is_refused() -> None:
    """A draft cannot use more slots than reserved, so it never takes other requests' pages."""

    def greed(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, tree=TokenTree(np.full(140, 5), np.full(140, -1)))
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    engine = toy_engine(kv_tokens=192, draft_tokens=16)
    bad, good = add(engine, greed), add(engine, plainly, PROMPT, 40)
    finish(engine)
    assert isinstance(bad.error, DecoderError)
    assert good.output == greedy(PROMPT, 40)


def test_text_ends_at_the_stop_string_even_if_more_was_held_back() -> None:
    text = OutputText(ToyText(), ["c"])
    stopped = [text.push(token) for token in (0, 1, 2, 3)]
    text.finish()
    assert stopped == [False, False, False, True]
    assert text.value == "ab"


def test_nobody_starves_when_drafts_fill_the_step() -> None:
    """If every step has room for only one draft, the two sequences take turns."""

    def decode(seq: TokenSequence) -> Steps:
        while not seq.finished:
            tree = TokenTree.chain([5] * 6)
            reply = yield Forward(seq.pending, tree=tree)
            seq.commit(coupled(seq, EMPTY, reply))

    engine = toy_engine(step_tokens=8)
    first, second = add(engine, decode, (11,), 12), add(engine, decode, (12,), 12)
    third = add(engine, plainly, PROMPT, 2)
    for _ in range(12):
        engine.step()
    assert abs(len(first.output) - len(second.output)) <= 1
    finish(engine)
    assert third.output == greedy(PROMPT, 2)


def test_the_span_type_is_what_backends_get() -> None:
    seen: list[Span] = []

    class Curious(ToyBackend):
        def forward(self, spans):  # type: ignore[no-untyped-def]
            seen.extend(spans)
            return super().forward(spans)

    engine = toy_engine({"target": Curious()})
    add(engine, plainly, PROMPT, 2)
    finish(engine)
    for span in seen:
        for array in (span.pages, span.tokens, span.positions, span.slots, span.logits, span.tail):
            assert array.dtype == np.int32
            assert array.ndim == 1
