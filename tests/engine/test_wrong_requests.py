"""Forwards that cannot be run: what is wrong is named, and only the request that asks ends."""

from __future__ import annotations

import numpy as np
import pytest
from driving import add, finish, greedy, plainly, served, toy_engine

from paradecode.core.decoder import Forward, Overwrite, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree

INDICES = {
    "tokens": lambda bad: Forward(bad, store=Store.NONE),
    "under": lambda bad: Forward(LAST[:0], tree=TokenTree.siblings([1, 2]), under=bad),
    "places": lambda bad: Forward(LAST[:0], tree=TokenTree.siblings([1, 2]), places=bad),
    "positions": lambda bad: Forward(LAST, store=Store.NONE, positions=bad),
    "visible": lambda bad: Forward(LAST, store=Store.NONE, visible=bad),
    "logits": lambda bad: Forward(LAST, store=Store.NONE, logits=bad),
    "attention": lambda bad: Forward(LAST, store=Store.NONE, attention=bad),
    "slots": lambda bad: Forward(LAST, store=Overwrite(bad)),
}
LAST = np.array([5], np.int32)
NO_INDICES = [
    np.array([0.0, 1.0]),
    [np.nan],
    [[0], [1]],
    np.zeros((1, 1), np.int32),
    "ab",
    0,
    [[], 1],
]


@pytest.mark.parametrize("bad", NO_INDICES, ids=repr)
@pytest.mark.parametrize("field", INDICES)
def test_what_is_no_vector_of_numbers_is_named_and_ends_its_request_only(
    field: str, bad: object
) -> None:
    engine = toy_engine()

    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        yield INDICES[field](bad)

    wrong, good = add(engine, decode, (4, 6, 8)), add(engine)
    finish(engine)
    assert isinstance(wrong.error, InvalidInput)
    assert wrong.error.field == field
    assert "give a vector of whole numbers" in str(wrong.error)
    assert good.output == greedy()


def test_lists_of_numbers_are_fine() -> None:
    seen = []

    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        for form in (list, np.array, lambda listed: np.array(listed, np.int32)):
            place = form([2])
            reply = yield Forward(
                form([5]),
                store=Overwrite(place),
                positions=place,
                visible=form([0, 1]),
                logits=form([0]),
            )
            seen.append(reply.logits.values)
        yield from plainly(seq)

    served(decode)
    assert (seen[0] == seen[1]).all()
    assert (seen[0] == seen[2]).all()


@pytest.mark.parametrize("under", [[-1], [-1, -1, -1]])
def test_each_row_of_a_tree_has_one_that_it_follows(under: list[int]) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        yield Forward(LAST[:0], tree=TokenTree.siblings([1, 2]), under=np.array(under, np.int32))

    sequence = served(decode)
    assert isinstance(sequence.error, InvalidInput)
    assert "give one for each of the tree's 2 rows" in str(sequence.error)


@pytest.mark.parametrize(
    "forward",
    [
        Forward(np.empty(0, np.int32)),
        Forward(np.array([5], np.int32)),
        Forward(np.array([99], np.int32), store=Store.NONE),
        Forward(np.array([5], np.int32), store=Overwrite(np.array([9999], np.int32))),
        Forward(np.array([5], np.int32), store=Store.NONE, attend=np.ones((2, 2), bool)),
        Forward(np.array([5], np.int32), store=Store.NONE, positions=np.array([999], np.int32)),
        Forward(np.array([5], np.int32), store=Store.NONE, positions=np.array([-1], np.int32)),
        Forward(np.array([5], np.int32), store=Store.NONE, layers=(9,)),
        Forward(np.array([5], np.int32), store=Store.NONE, visible=np.array([99], np.int32)),
        Forward(np.array([5], np.int32), store=Store.NONE, model="nobody"),
        Forward(np.array([5], np.int32), store=Store.NONE, embeddings=np.ones((1, 2), np.float32)),
        Forward(np.empty(0, np.int32), tree=TokenTree.chain([5])),
    ],
)
def test_impossible_forwards_end_their_request_only(forward: Forward) -> None:
    engine = toy_engine()

    def decode(seq: TokenSequence) -> Steps:
        yield forward

    bad, good = add(engine, decode, (4, 6, 8)), add(engine)
    finish(engine)
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert good.output == greedy()
