"""A forward that cannot run ends only its own request, with an error that says what is wrong."""

from typing import Any

import numpy as np
import pytest
from driving import (
    LOOP,
    NEGATIVE,
    add,
    finish,
    greedy,
    plainly,
    served,
    served_beside_another,
    toy_engine,
)

from paradecode.core.decoder import Apply, Forward, Overwrite, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
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
    np.array([0.0, 1.0]), [np.nan], [[0], [1]], np.zeros((1, 1), np.int32), "ab", 0, [[], 1],
]  # fmt: skip


@pytest.mark.parametrize("bad", NO_INDICES, ids=repr)
@pytest.mark.parametrize("field", INDICES)
def test_what_is_no_vector_of_numbers_is_named_and_ends_its_request_only(field, bad):
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
                form([5]), store=Overwrite(place), positions=place, visible=form([0, 1]),
                logits=form([0]),
            )  # fmt: skip
            seen.append(reply.logits.values)
        yield from plainly(seq)

    served(decode)
    assert (seen[0] == seen[1]).all()
    assert (seen[0] == seen[2]).all()


def looks(tokens: Any = LAST, **more: Any) -> Forward:
    return Forward(tokens, **{"store": Store.NONE, **more})


ALL = np.array(LOOP, np.int32)
TWO = TokenTree.siblings([1, 2])
BAD: list[Any] = [
    Forward(LAST[:0]), Forward(LAST + 1), Forward(LAST[:0], tree=TokenTree.chain([5])),
    looks(np.array([99], np.int32)), Forward(LAST, store=Overwrite(np.array([9999], np.int32))),
    looks(attend=np.ones((2, 2), bool)), looks(positions=np.array([999], np.int32)),
    looks(positions=np.array([-1], np.int32)), looks(visible=np.array([99], np.int32)),
    looks(model="nobody"), looks(embeddings=np.ones((1, 2), np.float32)), looks(layers=(9,)),
    Forward(ALL, layers=(0,), hidden=(1,)), Forward(ALL, layers=(Half(2, "mlp"),)),
    Forward(ALL, layers=(Half(0, "mlp"),), hidden=(Half(0, "mlp"),)), Forward(ALL, layers=5),
    Forward(ALL, layers=(Half(0, "both"),)), Forward(ALL, layers=((0, "mlp"),)),
    Forward(ALL, layers=([0], {1: 2})), Forward(None), Forward(5), Forward(ALL, tree=None),
    Forward(np.array([LOOP], np.int32)), Forward(ALL, hidden=(7,)),
    Apply(NEGATIVE[1], {"x": 5}), Apply(NEGATIVE[2], {"x": np.ones((1, 1), np.float32)}),
    *(Forward(LAST[:0], tree=TWO, under=np.array(n)) for n in ([-1], [-1, -1, -1])),
]  # fmt: skip


@pytest.mark.parametrize("request_", BAD, ids=map(str, range(len(BAD))))
def test_impossible_requests_end_their_request_only(request_: Forward | Apply) -> None:
    answered = []

    def decode(seq: TokenSequence) -> Steps:
        answered.append((yield request_))
        yield from plainly(seq)

    bad = served_beside_another(decode)
    assert not answered
    assert bad.finish_reason == "error"
    assert bad.error is not None
