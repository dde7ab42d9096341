"""Rows that are stored in some layers only, and slots that are written out of turn."""

from __future__ import annotations

import numpy as np
import pytest
from driving import LOOP, add, finish, greedy, plainly, toy_engine

from paradecode.core.decoder import Steps
from paradecode.core.request import Attend, Fork, Forward, Overwrite, Store
from paradecode.core.sequence import Sequence
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend

LAST = np.array([len(LOOP) - 1], np.int32)
NONE = np.empty(0, np.int32)


def some(seq: Sequence) -> Steps:
    """Run the prompt, the last token of it through the first layer only; returns what leaves it."""
    yield Forward(seq.pending[:-1])
    reply = yield Forward(seq.pending, layers=(0,), hidden=(0,))
    return reply.hidden[0]


def rest(seq: Sequence, states: np.ndarray) -> Forward:
    return Forward(
        seq.tokens[LAST], layers=(1,), resume=states, store=Overwrite(LAST), positions=LAST,
        visible=np.arange(len(LOOP) - 1, dtype=np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("drafts", [False, True])
def test_a_row_can_get_its_layers_one_by_one(drafts: bool) -> None:
    engine = toy_engine()

    def decode(seq: Sequence) -> Steps:
        states = yield from some(seq)
        if drafts:  # By the layers that hold the row; it comes and goes.
            yield Forward(NONE, tree=TokenTree.chain([5, 6]), layers=(0,))
        reply = yield rest(seq, states)
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = add(engine, decode)
    finish(engine)
    assert sequence.error is None
    assert sequence.output == greedy()


@pytest.mark.parametrize(
    "forward",
    [
        Forward(LAST, store=Store.NONE),
        Forward(LAST, store=Store.NONE, layers=(1,)),
        Forward(LAST, store=Store.NONE, layers=(0, 1), visible=np.arange(len(LOOP))),
        Forward(NONE, tree=TokenTree.chain([5]), layers=(1,)),
        Forward(NONE, tree=TokenTree.chain([5])),
    ],
)
@pytest.mark.parametrize("fork", [False, True])
def test_a_layer_does_not_see_a_row_that_it_has_not(forward: Forward, fork: bool) -> None:
    engine = toy_engine()

    def decode(seq: Sequence) -> Steps:
        yield from some(seq)
        child = (yield Fork(1))[0] if fork else None
        for layers, end in (((0,), len(LOOP)), ((0, 1), len(LOOP) - 1)):
            yield Forward(LAST, store=Store.NONE, layers=layers, visible=np.arange(end), on=child)
        seq.prediction = LAST
        forward_on = Forward(**{**vars(forward), "on": child})
        yield forward_on

    sequence, good = add(engine, decode), add(engine)
    finish(engine)
    assert sequence.prediction is not None
    assert "keys and values" in str(sequence.error)
    assert good.output == greedy()


def test_slots_may_be_left_out() -> None:
    """Two tokens in one slot: the row is at the second one's place, and the first has none."""
    engine, toy, seen = toy_engine(), ToyBackend(), []
    at = np.array([len(LOOP) + 1], np.int32)

    def decode(seq: Sequence) -> Steps:
        yield Forward(seq.pending)
        given = toy.embed(np.array([7, 9]))[1:]
        yield Forward(at, embeddings=given, store=Overwrite(at), positions=at)
        shown = np.append(np.arange(len(LOOP)), at).astype(np.int32)
        reply = yield Forward(np.array([4], np.int32), store=Store.NONE, positions=at + 1,
                              visible=shown, attend=Attend.FULL)  # fmt: skip
        seen.append(reply.logits.argmax()[0])
        yield Forward(LAST, store=Store.NONE, visible=np.arange(len(LOOP) + 1), positions=at)

    sequence = add(engine, decode)
    finish(engine)
    positions = np.append(np.arange(len(LOOP)), [at[0], at[0] + 1])
    wanted = toy.logits_of(toy.embed(np.array([*LOOP, 9, 4])), positions)
    assert seen == [wanted.argmax()]
    assert "no keys and values" in str(sequence.error)


def test_a_draft_in_a_slot_ends_what_was_there() -> None:
    engine = toy_engine()
    at = np.array([len(LOOP)], np.int32)

    def decode(seq: Sequence) -> Steps:
        yield Forward(seq.pending)
        yield Forward(at, store=Overwrite(at), positions=at)
        yield Forward(LAST, store=Store.NONE, visible=at, positions=at + 1)
        yield Forward(NONE, tree=TokenTree.chain([5]))
        seq.prediction = LAST
        yield Forward(LAST, store=Store.NONE, visible=at, positions=at + 1)

    sequence = add(engine, decode)
    finish(engine)
    assert sequence.prediction is not None
    assert "no keys and values" in str(sequence.error)
