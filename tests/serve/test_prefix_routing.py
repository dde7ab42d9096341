"""Requests are routed to replicas by their prefix. These tests run without Ray."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from paradecode.serve.ray.prefix import SLACK, choose, prefix_key, ranking
from paradecode.serve.wire import Generate, PromptInput

REPLICAS = [f"replica-{number}" for number in range(5)]
KEYS = [f"key-{number}" for number in range(2000)]


def key(model: str = "m", salt: str = "", **prompt: Any) -> str:
    return prefix_key(model, Generate(id="x", prompt=PromptInput(**prompt), sampling={}, salt=salt))


def test_equal_beginnings_have_equal_keys() -> None:
    system = {"role": "system", "content": "You are terse. " * 60}
    chats = [[system, {"role": "user", "content": text}] for text in ("Hello", "Goodbye")]
    assert key(messages=chats[0]) == key(messages=chats[1])
    assert key(text="a" * 600 + "b") == key(text="a" * 700)
    assert key(tokens=[*range(200)]) == key(tokens=[*range(199)])


@pytest.mark.parametrize(
    "other",
    [{"text": "another"}, {"text": "one", "salt": "tenant"}, {"text": "one", "model": "n"},
     {"tokens": [1]}, {"messages": [{"role": "user", "content": "one"}]}],
)  # fmt: skip
def test_what_shares_no_cache_shares_no_key(other: dict[str, Any]) -> None:
    assert key(text="one") != key(**other)


def test_tools_count_as_the_beginning() -> None:
    messages = [{"role": "user", "content": "one"}]
    assert key(messages=messages, tools=[{"name": "f"}]) != key(messages=messages)


def test_keys_spread_evenly() -> None:
    counts = Counter(ranking(key, REPLICAS)[0] for key in KEYS)
    assert all(300 < counts[name] < 500 for name in REPLICAS), counts


def test_only_the_keys_of_a_lost_replica_move() -> None:
    left = REPLICAS[1:]
    for key in KEYS[:200]:
        before, after = ranking(key, REPLICAS), ranking(key, left)
        assert after == [name for name in before if name != REPLICAS[0]]
    assert ranking("x", REPLICAS) == ranking("x", REPLICAS[::-1])


def test_a_key_keeps_its_replica_while_that_has_room() -> None:
    first = ranking("x", REPLICAS)[0]
    for load in range(SLACK):
        assert choose("x", dict.fromkeys(REPLICAS, 0) | {first: load})[0] == first
    # The first replica has four requests and the others have none, so it gets no more.
    order = choose("x", dict.fromkeys(REPLICAS, 0) | {first: SLACK})
    assert order[0] == ranking("x", REPLICAS)[1]
    assert order[-1] == first


def test_one_key_alone_is_spread_by_load() -> None:
    running = dict.fromkeys(REPLICAS, 0)
    for _ in range(500):
        running[choose("x", running)[0]] += 1
    assert max(running.values()) == 1.25 * 100
    assert sum(count > 0 for count in running.values()) == 4


def test_all_replicas_are_named_even_if_all_are_busy() -> None:
    order = choose("x", dict.fromkeys(REPLICAS, 50))
    assert sorted(order) == sorted(REPLICAS)
    assert choose("x", {}) == []
    # Among replicas that are too busy, the less busy one comes first.
    assert choose("x", {"a": 90, "b": 80, "c": 0})[1:] == ["b", "a"]
