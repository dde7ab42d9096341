"""Tests of turns, their interleaving, and failures."""

from dataclasses import dataclass, field

from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import Record
from paradecode_lab.measure.turns import MAX_FAILURES, PlayerError, run, schedule, units_of

ITEMS = [Item(f"p{i}", f"p{i}", "g", (1, 2, 3), 8) for i in range(6)]


@dataclass
class Toy:
    """A player that fails on some items; ``loads`` gives the machine's load at each turn."""

    name: str
    max_rounds: int = 99
    fails_on: tuple[str, ...] = ()
    fatal: bool = False
    loads: list[float] = field(default_factory=list)
    played: list[tuple[str, int]] = field(default_factory=list)

    def play(self, unit) -> list[Record]:
        (item,) = unit.items
        self.played.append((item.id, unit.round))
        if item.id in self.fails_on:
            raise PlayerError("boom", self.fatal)
        load = self.loads.pop(0) if self.loads else 0.0
        return [Record(self.name, item.id, unit.round, (7,), other_load=load)]


def units(rounds):
    return [unit for number in range(rounds) for unit in units_of(ITEMS, round=number)]


def _run(players, rounds=1, **options) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    lost: list[str] = []
    turns = list(schedule(units(rounds), players))
    run(turns, records.append, lambda name, reason: lost.append(name), **options)
    return records, lost


def test_everyone_plays_every_item_before_the_next_item() -> None:
    players = [Toy("a"), Toy("b"), Toy("c", max_rounds=1)]
    turns = list(schedule(units(2), players))
    assert len(turns) == 6 * 3 + 6 * 2
    for start in range(0, 18, 3):
        step = turns[start : start + 3]
        assert {turn.player.name for turn in step} == {"a", "b", "c"}
        assert len({turn.unit.items for turn in step}) == 1
    firsts = {turns[start].player.name for start in range(0, 18, 3)}
    assert len(firsts) > 1  # The order changes.
    assert [t.player.name for t in turns] == [t.player.name for t in schedule(units(2), players)]


def test_done_turns_are_not_repeated() -> None:
    done = {("a", 1, 0, "p0"), ("b", 1, 0, "p3")}
    turns = list(schedule(units(1), [Toy("a"), Toy("b")], done))
    assert len(turns) == 10
    assert not done & {(t.player.name, 1, t.unit.round, t.unit.items[0].id) for t in turns}


def test_a_failure_costs_one_item() -> None:
    records, lost = _run([Toy("a", fails_on=("p1", "p3")), Toy("b")])
    assert not lost
    assert [r.item for r in records if r.error] == ["p1", "p3"]
    assert sum(not r.error for r in records) == 10


def test_failures_in_a_row_or_a_death_end_a_player_and_no_other() -> None:
    everything = tuple(item.id for item in ITEMS)
    sick, dead = Toy("a", fails_on=everything), Toy("b", fails_on=("p2",), fatal=True)
    well = Toy("c")
    records, lost = _run([sick, dead, well])
    assert sorted(lost) == ["a", "b"]
    assert len(sick.played) == MAX_FAILURES
    assert dead.played[-1] == ("p2", 0)
    assert len(well.played) == len(ITEMS)
    assert {r.engine for r in records if not r.error} == {"b", "c"}


def test_disturbed_measurements_are_repeated_and_the_quietest_counts() -> None:
    toy = Toy("a", loads=[1.0, 0.5, 0.7, 0.1, 0.9, 0.0])
    records, _ = _run([toy], quiet_below=0.2, retries=2)
    assert [r.other_load for r in records] == [0.5, 0.1, 0.0, 0.0, 0.0, 0.0]
    assert len(toy.played) == 3 + 1 + 2 + 3
    untouched = Toy("a", loads=[1.0])
    records, _ = _run([untouched])
    assert records[0].other_load == 1.0
    assert len(untouched.played) == 6
