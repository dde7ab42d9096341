"""Rows may be stored in some layers only, and slots may be written in any order."""

import numpy as np
import pytest
from driving import LOOP, add, finish, greedy, plainly, served, served_beside_another, toy_engine

from paradecode.core.decoder import (
    Attend,
    Fork,
    Forward,
    Overwrite,
    Steps,
    Store,
    TokenSequence,
    Verdict,
)
from paradecode.core.layers import Half
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend

LAST = np.array([len(LOOP) - 1], np.int32)
NONE = np.empty(0, np.int32)


def some(seq: TokenSequence) -> Steps:
    """Run the prompt, but its last token through the first layer only; return that layer's rows."""
    yield Forward(seq.pending[:-1])
    reply = yield Forward(seq.pending, layers=(0,), hidden=(0,))
    return reply.hidden[0]


def rest(seq: TokenSequence, states: np.ndarray) -> Forward:
    return Forward(
        seq.tokens[LAST], layers=(1,), resume=states, store=Overwrite(LAST), positions=LAST,
        visible=np.arange(len(LOOP) - 1, dtype=np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("drafts", [False, True])
def test_a_row_can_get_its_layers_one_by_one(drafts: bool) -> None:
    def decode(seq: TokenSequence) -> Steps:
        states = yield from some(seq)
        if drafts:  # Drafts by layers that hold the row.
            yield Forward(NONE, tree=TokenTree.chain([5, 6]), layers=(0,))
        reply = yield rest(seq, states)
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = served(decode)
    assert sequence.error is None
    assert sequence.output == greedy()


@pytest.mark.parametrize("forward", [
    Forward(LAST, store=Store.NONE), Forward(LAST, store=Store.NONE, layers=(1,)),
    Forward(LAST, store=Store.NONE, layers=(0, 1), visible=np.arange(len(LOOP))),
    Forward(NONE, tree=TokenTree.chain([5]), layers=(1,)), Forward(NONE, tree=TokenTree.chain([5])),
])  # fmt: skip
@pytest.mark.parametrize("fork", [False, True])
def test_a_layer_does_not_see_a_row_that_it_has_not(forward: Forward, fork: bool) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield from some(seq)
        child = (yield Fork(1))[0] if fork else None
        for layers, end in (((0,), len(LOOP)), ((0, 1), len(LOOP) - 1)):
            yield Forward(LAST, store=Store.NONE, layers=layers, visible=np.arange(end), on=child)
        seq.prediction = LAST
        forward_on = Forward(**{**vars(forward), "on": child})
        yield forward_on

    sequence = served_beside_another(decode)
    assert sequence.prediction is not None
    assert "keys and values" in str(sequence.error)


def test_slots_may_be_left_out() -> None:
    """Two tokens may share one slot, so that the first of their positions has no slot."""
    engine, toy, seen = toy_engine(), ToyBackend(), []
    at = np.array([len(LOOP) + 1], np.int32)

    def decode(seq: TokenSequence) -> Steps:
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
    at = np.array([len(LOOP)], np.int32)

    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        yield Forward(at, store=Overwrite(at), positions=at)
        yield Forward(LAST, store=Store.NONE, visible=at, positions=at + 1)
        yield Forward(NONE, tree=TokenTree.chain([5]))
        seq.prediction = LAST
        yield Forward(LAST, store=Store.NONE, visible=at, positions=at + 1)

    sequence = served(decode)
    assert sequence.prediction is not None
    assert "no keys and values" in str(sequence.error)


BEFORE = np.arange(len(LOOP) - 1, dtype=np.int32)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("forward", [
    Forward(LAST, store=Store.NONE, layers=(99,), visible=BEFORE),
    Forward(LAST, store=Store.NONE, layers=(-1,)),
    Forward(LAST, store=Overwrite(LAST), layers=(99,), visible=BEFORE, positions=LAST),
    Forward(NONE, tree=TokenTree.chain([5]), layers=(Half(2, "attention"),)),
])  # fmt: skip
def test_layers_that_the_model_has_not_are_named(forward: Forward, holes: bool) -> None:
    def decode(seq: TokenSequence) -> Steps:
        if holes:
            yield from some(seq)
        else:
            yield Forward(seq.pending)
        yield forward

    sequence = served_beside_another(decode)
    assert "the model has layers 0 to 1" in str(sequence.error)


def test_rows_of_a_live_draft_are_not_overwritten() -> None:
    caught = []
    at = np.array([len(LOOP)], np.int32)

    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending, tree=TokenTree.chain(greedy()[:2]))
        caught.append(seq.tokens)
        yield Forward(at, store=Overwrite(at), positions=at)

    sequence = served(decode)
    assert caught
    assert f"only those below {len(LOOP)} can be overwritten" in str(sequence.error)


@pytest.mark.parametrize(("part", "cached"), [
    ({}, 32),
    # Draft rows that saw tokens that no other request has there, or only some of the text.
    ({"tokens": np.array([11], np.int32), "positions": np.array([3], np.int32)}, 16),
    ({"visible": np.arange(2, dtype=np.int32)}, 16),
], ids=["as text", "behind rows stored nowhere", "a part of the text"])  # fmt: skip
def test_only_drafts_that_saw_the_text_are_offered_to_others(part: dict, cached: int) -> None:
    engine, draft = toy_engine(draft_tokens=32), [5, 6, 7, 8] * 4

    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        tree = TokenTree.chain(draft)
        yield Forward(**{"tokens": NONE, "tree": tree, "store": Store.NONE, **part})
        logits = np.zeros((len(draft) + 1, 29))
        seq.commit(Verdict([*draft, 9], list(range(len(draft) + 1)), logits))

    first = add(engine, decode, max_tokens=len(draft) + 1)
    finish(engine)
    assert first.error is None
    text = (*LOOP, *draft, 9)
    second = add(engine, prompt=text)
    finish(engine)
    assert second.cached_tokens == cached
    assert second.output == greedy(text)
