"""Tests of the figures that are computed from records."""

from dataclasses import replace

import pytest

from paradecode_lab.measure.figures import figures
from paradecode_lab.measure.results import ItemInfo, Record, Results, Score
from paradecode_lab.measure.speeds import collapse, first_difference


def test_known_ratio_is_recovered_under_noise(make_results) -> None:
    results = make_results({"slow/q": 100, "fast/q": 250}, noise=0.2)
    slow, fast = figures(results, "slow/q")
    assert slow.total.speedup.value == 1
    assert fast.total.speedup.value == pytest.approx(2.5, rel=0.08)
    assert fast.total.speedup.low < 2.5 < fast.total.speedup.high
    assert fast.total.decode.value == pytest.approx(250, rel=0.15)
    assert fast.total.first_token.value == pytest.approx(0.1)
    assert fast.total.prefill.value == pytest.approx(500)


def test_totals_weigh_tokens(make_results) -> None:
    """A long answer at half speed counts by its tokens: speed is all tokens over all seconds."""
    results = make_results({"one/q": 100}, rounds=1, lengths=(11, 1001))
    records = tuple(
        replace(r, decode_seconds=r.decode_seconds * (2 if len(r.token_ids) > 100 else 1))
        for r in results.records
    )
    found = figures(replace(results, records=records))[0].total.decode
    assert found.value == pytest.approx(1010 / (0.1 + 20))


def test_median_over_rounds_ignores_one_bad_round(make_results) -> None:
    results = make_results({"one/q": 100}, rounds=3, lengths=(51,))
    records = (replace(results.records[0], decode_seconds=60.0), *results.records[1:])
    found = figures(replace(results, records=records))[0].total.decode
    assert found.value == pytest.approx(100)


def test_disturbed_rounds_count_only_when_there_is_no_other(make_results) -> None:
    results = make_results({"one/q": 100}, rounds=2, lengths=(51, 51))
    records = [
        replace(r, other_load=1.5, decode_seconds=9.0) if r.round == 0 or r.item == "p1" else r
        for r in results.records
    ]
    own = collapse(replace(results, records=tuple(records)), "one/q")
    assert own["p0"].decode_seconds == pytest.approx(0.5)
    assert own["p1"].decode_seconds == pytest.approx(9.0)
    assert (own["p0"].disturbed, own["p1"].disturbed) == (False, True)


def test_comparisons_use_the_items_both_have(make_results) -> None:
    results = make_results({"slow/q": 100, "fast/q": 300}, lengths=(50, 60, 70))
    records = tuple(
        replace(r, error="timeout", token_ids=()) if (r.engine, r.item) == ("slow/q", "p1") else r
        for r in results.records
    )
    slow, fast = figures(replace(results, records=records), "slow/q")
    assert slow.total.items == 2
    assert fast.total.items == 3
    assert fast.total.speedup.value == pytest.approx(3)


def test_engine_that_never_answered_is_left_out(make_results) -> None:
    results = make_results({"a/q": 100, "b/q": 100})
    records = tuple(r for r in results.records if r.engine == "a/q")
    assert [s.engine.name for s in figures(replace(results, records=records))] == ["a/q"]


def test_losslessness_is_counted_per_output(make_results) -> None:
    results = make_results({"a/q": 100, "a/q+lookup": 150}, rounds=2, lengths=(20, 20, 20, 20))

    def damage(record: Record) -> Record:
        if record.engine != "a/q+lookup":
            return record
        if record.item == "p1":
            return replace(record, token_ids=(*record.token_ids[:7], 9, *record.token_ids[8:]))
        return replace(record, token_ids=record.token_ids[:13]) if record.item == "p2" else record

    results = replace(results, records=tuple(map(damage, results.records)))
    plain, lookup = figures(results)
    assert plain.lossless is None
    assert (lookup.lossless.items, lookup.lossless.identical) == (4, 2)
    assert (lookup.lossless.first_differences, lookup.repeatable) == ((7, 13), 4)


def test_outputs_that_change_between_rounds_are_reported(make_results) -> None:
    results = make_results({"a/q": 100}, rounds=2, lengths=(20, 20))
    first = results.records[0]
    changed = replace(first, token_ids=first.token_ids[:10], decode_seconds=0.09)
    results = replace(results, records=(changed, *results.records[1:]))
    summary = figures(results)[0]
    assert summary.repeatable == 1
    assert summary.total.decode.value == pytest.approx(100)


def test_quality_is_per_token_over_all_outputs(make_results) -> None:
    results = make_results({"a/q": 100}, lengths=(10, 30))
    outputs = {(r.item, r.token_ids) for r in results.records}
    scores = {
        key: Score(len(key[1]) * (1.0 if len(key[1]) == 10 else 2.0), 8, len(key[1]))
        for key in outputs
    }
    summary = figures(replace(results, scores=scores))[0]
    assert summary.nll == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert summary.agreed == pytest.approx(16 / 40)
    partial = dict(list(scores.items())[:1])
    assert figures(replace(results, scores=partial))[0].nll is None


def test_first_commit_belongs_to_the_prompt(make_results) -> None:
    results = make_results({"a/q": 100}, rounds=1, lengths=(11,))
    record = replace(results.records[0], first_tokens=6, decode_seconds=0.5)
    assert figures(replace(results, records=(record,)))[0].total.decode.value == 10


def test_answer_of_one_token_has_no_decode_speed(make_results) -> None:
    results: Results = make_results({"a/q": 100}, rounds=1, lengths=(1,))
    total = figures(results)[0].total
    assert total.decode is None
    assert total.overall is not None


def test_groups_hold_their_own_items(make_results) -> None:
    results = make_results({"a/q": 100}, lengths=(10, 20, 30))
    summary = figures(results)[0]
    assert {name: speed.items for name, speed in summary.groups.items()} == {"short": 2, "long": 1}


@pytest.mark.parametrize(("one", "other", "expected"), [
    ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((), (), None),
])  # fmt: skip
def test_first_difference(one, other, expected) -> None:
    assert first_difference(one, other) == expected


def test_turns_share_their_prompt() -> None:
    item = ItemInfo("p/2", "p", "chat", 5, 10)
    assert item.prompt == "p"
