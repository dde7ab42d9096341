"""Learned data is kept for as many tenants as fit into the limit of bytes."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from driving import add, finish, plainly, toy_engine

from paradecode.core.decoder import Fork, Steps, TokenSequence
from paradecode.core.errors import CapacityError
from paradecode.engine.resources import Limits, Resources
from paradecode.methods.draft.drafters.aded import TriGrams
from paradecode.methods.draft.drafters.stand import NgramDistributions
from paradecode.methods.draft.drafters.suffix import PastOutputs
from paradecode.methods.draft.drafters.token_recycling import RecyclingTable
from paradecode.methods.draft.head_drafter import PastStates
from paradecode.testing.toy import ToyBackend


class Store:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def resources(learned_bytes: int) -> Resources:
    return Resources({"target": ToyBackend()}, Limits(learned_bytes=learned_bytes, kv_tokens=256))


def test_the_owner_with_the_most_bytes_forgets_first() -> None:
    shared = resources(104_000)
    shared.stores.of("modest", "modest")["a"] = Store(20_000)
    for salt in ("x", "y", "z"):
        shared.stores.of(salt, "greedy")["a"] = Store(30_000)
    assert shared.stores.of("new", "new") == {}
    assert "a" in shared.stores.of("modest", "modest")
    assert "a" not in shared.stores.of("x", "greedy")  # Its oldest was forgotten,
    assert all("a" in shared.stores.of(salt, "greedy") for salt in ("y", "z"))  # no other.


def test_many_small_tenants_are_kept_and_few_large_ones() -> None:
    shared = resources(1 << 20)
    for number in range(200):
        shared.stores.of(str(number), "")["a"] = Store(100)
    assert "a" in shared.stores.of("0", "")
    for number in range(200, 210):
        shared.stores.of(str(number), "")["a"] = Store(1 << 19)
    kept = [n for n in range(200, 210) if "a" in shared.stores.of(str(n), "")]
    assert kept == [209]


def kept(size: int) -> PastStates:
    states = PastStates()
    pages = -(-size // (4 << 10))
    states.keep([bytes([n]) for n in range(pages)], np.zeros((16 * pages, 64), np.float32))
    return states


def test_kept_states_go_before_what_others_have_learned() -> None:
    """Cached head states of six tenants are dropped before other tenants' n-grams."""
    shared = resources(200_000)
    for salt in ("x", "y"):
        shared.stores.of(salt, "modest")["n-grams"] = Store(20_000)
    for salt in "abcdef":
        own = shared.stores.of(salt, "heads")
        own["n-grams"], own["states"] = Store(1_000), kept(30_000)
    shared.stores.of("x", "modest")
    assert all("n-grams" in shared.stores.of(salt, "modest") for salt in ("x", "y"))
    found = [shared.stores.of(salt, "heads") for salt in "abcdef"]
    assert all("n-grams" in own for own in found)
    # Only the oldest stores were forgotten, and no more than necessary.
    assert ["states" in own for own in found] == [False] * 3 + [True] * 3


def test_what_is_learned_goes_when_no_states_are_left() -> None:
    shared = resources(60_000)
    for salt in ("x", "y"):
        own = shared.stores.of(salt, "")
        own["n-grams"], own["states"] = Store(30_000), kept(30_000)
    assert shared.stores.of("z", "") == {}
    assert list(shared.stores.of("y", "")) == ["n-grams"]
    assert shared.stores.of("x", "") == {}


def test_one_tenant_may_be_larger_than_all_may_be() -> None:
    shared = resources(0)
    shared.stores.of("one", "")["a"] = Store(9)
    assert "a" in shared.stores.of("one", "")
    shared.stores.of("two", "")
    assert "a" not in shared.stores.of("one", "")


def recycling() -> RecyclingTable:
    table = RecyclingTable(20_000, 8)
    table.ids[:], table.scores[:], table.seen[:] = 1, 1.0, True
    return table


def trigrams() -> TriGrams:
    table = TriGrams()
    for number in range(1000):
        table.move((number, 2000 + number), {3000 + i: 0.01 * i for i in range(1, 20)}, 0.5)
    return table


def distributions() -> NgramDistributions:
    store = NgramDistributions()
    for number in range(1000):
        store.add((number, 5000 + number), np.arange(10, dtype=np.int32), np.full(10, 0.1))
    return store


def past() -> PastOutputs:
    outputs, random = PastOutputs(), np.random.default_rng(0)
    for _ in range(100):
        outputs.extend(outputs.open(), random.integers(0, 300, 100).tolist(), most_outputs=1000)
    return outputs


@pytest.mark.parametrize("make", [recycling, trigrams, distributions, past])
def test_stores_know_their_size(make: object) -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store = make()  # type: ignore[operator]
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.6 * held < store.nbytes < 1.7 * held


def test_what_thousands_of_tenants_left_is_not_looked_at_again() -> None:
    shared, looks = resources(1 << 30), []

    class Counted(Store):
        def __getattribute__(self, name: str) -> Any:
            if name == "nbytes":
                looks.append(1)
            return super().__getattribute__(name)

    for number in range(2000):
        shared.stores.of(str(number), "")["a"] = Counted(100)
        shared.stores.left(str(number), "")
    assert len(looks) < 3 * 2000
    shared.stores.most = 100 * 5000  # What was there is too large now.
    shared.stores.of("new", "")
    assert "a" in shared.stores.of("1999", "")
    assert len(looks) < 4 * 2000


def test_sequences_say_when_they_leave_their_stores() -> None:
    engine = toy_engine()
    users = engine.stores._users

    def decode(seq: TokenSequence) -> Steps:
        children = list((yield Fork(2)))
        children += yield Fork(1, of=children[0])
        own = [child.shared("x", dict) for child in children]
        assert all(each is seq.shared("x", dict) for each in own)
        yield from plainly(seq)

    sequences = [add(engine, decode, salt=str(number % 2)) for number in range(4)]
    assert not users  # They wait.
    engine.step()
    assert users == {("0", "0"): 2, ("1", "1"): 2}
    engine.cancel(sequences[0])
    assert users == {("0", "0"): 1, ("1", "1"): 2}
    finish(engine)
    assert not users
    assert not any(one.error for one in sequences)
    assert sequences[1].shared("x", dict) is engine.stores.of("1", "1")["x"]


def test_requests_that_are_refused_hold_no_stores() -> None:
    engine = toy_engine(kv_tokens=160)
    for number in range(3):
        with pytest.raises(CapacityError):
            add(engine, max_tokens=140, salt=str(number))
    waiting = add(engine, max_tokens=4)
    engine.cancel(waiting)
    assert waiting.shared("late", dict) == {}
    assert not engine.stores._users
    assert not engine.stores._stores
