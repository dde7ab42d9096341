"""The simulation equals closed forms, with fractions and therefore exactly."""

from fractions import Fraction
from itertools import pairwise

import pytest

from paradecode_lab.measure.plan.events import Leg, play

T = Fraction(3, 7)


def stages(*times: Fraction) -> list[Leg]:
    return [Leg(str(number), lambda _, t=time: t) for number, time in enumerate(times)]


@pytest.mark.parametrize(("count", "items"), [(1, 1), (1, 5), (4, 1), (3, 2), (3, 8)])
def test_items_in_a_pipeline_of_equal_stages(count, items):
    """M items through S stages of time t take (M + S - 1) t."""
    played = play(stages(*[T] * count), items, passes=1)
    assert played.seconds == (items + count - 1) * T
    assert set(played.busy.values()) == {items * T}


@pytest.mark.parametrize(("flights", "count"), [(1, 3), (2, 3), (3, 3), (5, 3)])
def test_passes_of_several_flights(flights, count):
    """F flights of n passes keep S stages busy if F >= S; otherwise a pass takes S t."""
    passes = 6
    played = play(stages(*[T] * count), flights, passes)
    assert played.seconds == ((passes - 1) * max(flights, count) + flights - 1 + count) * T


@pytest.mark.parametrize(("length", "count"), [(2, 4), (4, 4), (5, 4), (8, 3)])
def test_a_queue_of_blocks(length, count):
    """DualParal's queue fills by a block in each round; then a block leaves after each round.

    A round of n blocks takes n t, or as long as its first block needs through S stages. In a full
    queue the first block of a round was the second one of the round before.
    """
    played = play(stages(*[T] * count), 20, length, room=length, behind=1)
    left = [own[-1] for own in played.ends]
    assert left[0] == sum(max(n, count) for n in range(1, length)) * T + count * T
    apart = {later - sooner for sooner, later in pairwise(left[3:-length])}
    assert apart == {max(length, count + (length > 1)) * T}


@pytest.mark.parametrize(("attention", "feed"), [(T, T), (T, 2 * T), (Fraction(5, 2) * T, T)])
def test_attention_and_feed_forward_apart_overlap(attention, feed):
    """Two batches hide the shorter part of each layer behind the longer one; one batch does not."""
    layers = 9
    way = [Leg("a", lambda _: attention), Leg("f", lambda _: feed)] * layers
    assert play(way, 1, 1).seconds == layers * (attention + feed)
    together = play(way, 2, 1).seconds
    assert together == 2 * layers * max(attention, feed) + min(attention, feed)


def test_a_link_carries_one_message_at_a_time_and_its_latency_occupies_nobody():
    way = [Leg("a", lambda _: T), Leg("a>b", lambda _: 5 * T, 100 * T), Leg("b", lambda _: T)]
    played = play(way, 3, 1)
    assert [own[0] for own in played.ends] == [T * n for n in (107, 112, 117)]
    assert played.busy == {"a": 3 * T, "a>b": 15 * T, "b": 3 * T}


def test_the_way_back_is_no_part_of_a_pass_and_later_passes_may_take_longer():
    way = [Leg("a", lambda done: T * (1 + done))]
    played = play(way, 1, 3, back=[Leg("a>a", lambda _: 10 * T, T)])
    assert played.ends == ((T, 14 * T, 28 * T),)


@pytest.mark.parametrize("room", [1, 2])
def test_items_wait_for_room(room):
    """With room for k of S stages, k items go through together, and the next ones begin then."""
    played = play(stages(*[T] * 4), 6, 3, room=room)
    assert [own[-1] for own in played.ends[:room]] == [(12 + n) * T for n in range(room)]
    assert played.seconds == (6 // room * 12 + room - 1) * T
