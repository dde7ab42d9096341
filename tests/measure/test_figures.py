"""Tests the figures of results whose true values are known."""

from dataclasses import replace
from typing import Any

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.compare import changes, columns, common_baseline, warnings
from paradecode_lab.measure.figures import figures, smallest_batch, usual_baseline
from paradecode_lab.measure.report.from_results import sheet_of_results
from paradecode_lab.measure.results import Counts, EngineInfo, ItemInfo, Record, Results, Score
from paradecode_lab.measure.tables import cells, heads

COUNTS = Counts(forwards=10, rows=100, draft_forwards=5, draft_rows=20, drafts=8, drafted=40,
                accepted=12, accepted_per_position=(8, 4), target=0.1, draft=0.05, verify=0.01,
                sample=0.02, other=0.02)  # fmt: skip


def decoder(name, guarantee="exact"):
    reference = None if name == "plain" else "plain"
    return EngineInfo(name, "paradecode", "native", name, reference, guarantee=guarantee)


def record(engine, item, tokens, **known):
    return Record(engine, item, 0, tuple(tokens), 1, 0.1, 0.2, counts=COUNTS, **known)


@pytest.fixture
def results(make_results):
    """Return results of plain decoding, of an exact method, and of a lossy one.

    The exact method is twice as fast in batches of 4.
    """
    base = make_results({"plain": 100.0})
    items = tuple(ItemInfo(f"p{n}", f"p{n}", "g", 10, 20) for n in range(8))
    records = []
    for n, item in enumerate(items):
        output = range(100, 120)
        records += [
            record("plain", item.id, output, right=n < 4, wall_seconds=0.3),
            record("fast", item.id, output, right=n < 4, wall_seconds=0.3),
            record("loose", item.id, [*range(100, 110), *[7] * 10], right=n < 1, wall_seconds=0.3),
            record("plain", item.id, output, batch=4, unit=n // 4, wall_seconds=0.4),
            record("fast", item.id, output, batch=4, unit=n // 4, wall_seconds=0.2),
        ]
    scores = {(r.item, r.token_ids): Score(10.0 if r.engine != "loose" else 30.0,
                                           20 if r.engine != "loose" else 15, 20)
              for r in records}  # fmt: skip
    engines = (decoder("plain"), decoder("fast"), decoder("loose", "lossy"))
    return replace(base, items=items, engines=engines, records=tuple(records), scores=scores,
                   settings={"temperature": 0.0})  # fmt: skip


def by_name(results):
    return {each.name: each for each in figures(results)}


def test_costs_a_token(results):
    cost = by_name(results)["fast"].cost
    assert cost.acceptance_length.value == 1 + 12 / 8
    assert (cost.per_position, cost.per_forward, cost.draft_forwards) == ((1.0, 0.5), 2.0, 0.25)
    assert cost.rows == 5.0
    assert cost.milliseconds["target"] == pytest.approx(1000 * 0.1 / 19)


def test_what_drafts_nothing_has_no_acceptance(results):
    without = replace(COUNTS, drafts=0, drafted=0, accepted=0, accepted_per_position=())
    records = tuple(replace(r, counts=without) for r in results.records)
    cost = by_name(replace(results, records=records))["plain"].cost
    assert cost.acceptance_length is None
    assert cost.per_position == ()


def test_equality_quality_and_accuracy(results):
    found = by_name(results)
    assert [found[name].verdict for name in ("plain", "fast", "loose")] == [
        "exact", "exact", "lossy",
    ]  # fmt: skip
    assert (found["fast"].equality.same, found["fast"].equality.outputs) == (16, 16)
    loose = found["loose"]
    assert (loose.equality.same, loose.equality.kept.value) == (0, 0.5)
    assert loose.own_choice.value == 0.75
    assert loose.nll_gap.value == pytest.approx(1.0)
    assert (loose.accuracy.right, loose.accuracy.checked) == (1, 8)
    assert loose.accuracy.gain.value == pytest.approx(-3 / 8)
    assert found["fast"].accuracy.gain.value == 0.0


def test_one_output_that_differs_in_a_batch_breaks_the_promise(results):
    *head, last = results.records
    assert (last.engine, last.batch) == ("fast", 4)
    wrong = replace(last, token_ids=(*last.token_ids[:-1], 5))
    fast = by_name(replace(results, records=(*head, wrong)))["fast"]
    assert (fast.verdict, fast.equality.differing) == ("broken", (("p7", 4, 19),))


def test_a_law_is_checked_token_by_token_at_temperature_0_only(results):
    engines = (decoder("plain"), decoder("fast"), decoder("loose", "distribution"))
    greedy = replace(results, engines=engines)
    assert by_name(greedy)["loose"].verdict == "broken"
    sampled = replace(greedy, settings={"temperature": 0.7})
    assert by_name(sampled)["loose"].verdict == "law"


def test_the_sweep_is_paired_by_batch_size(results):
    found = by_name(results)
    assert set(found["fast"].sweep) == {1, 4}
    assert found["fast"].sweep[4].over.value == pytest.approx(2.0)
    assert found["fast"].sweep[1].over.value == pytest.approx(1.0)
    assert found["plain"].sweep[4].over is None
    assert found["plain"].sweep[4].speed.value == pytest.approx(20 / 0.4)
    assert {r.batch for r in smallest_batch(results).records} == {1}


def test_the_baseline_is_what_all_others_refer_to(results, make_results):
    assert usual_baseline(results) == "plain"
    several = make_results({"a/q": 1.0, "a/q+x": 1.0, "b/q": 1.0, "b/q+x": 1.0})
    assert usual_baseline(several) is None
    assert figures(several)[0].total.speedup is None
    assert figures(several, "a/q")[1].total.speedup is not None


def faster(results: Results, factor: float) -> Results:
    return replace(
        results,
        records=tuple(
            replace(r, decode_seconds=r.decode_seconds / factor) for r in results.records
        ),
    )


def alone(results: Results, decode_seconds: float, **engine: Any) -> Results:
    """Return results of ``suffix`` beside ``greedy``.

    ``suffix`` makes 20 tokens in 10 forwards and is exact; ``greedy`` takes 0.2 s.
    """
    names = {"plain": "greedy", "fast": "suffix"}
    engines = tuple(
        replace(each, name=names[each.name], reference=each.reference and "greedy")
        for each in results.engines[:2]
    )
    records = tuple(
        replace(
            r, engine=names[r.engine],
            decode_seconds=decode_seconds if r.engine == "fast" else 0.2,
        )
        for r in results.records if r.engine in names
    )  # fmt: skip
    return replace(results, engines=(engines[0], replace(engines[1], **engine)), records=records)


@pytest.mark.parametrize(("seconds", "engine", "suspicious"), [
    (0.2 / 3, {}, True), (0.2 / 2, {}, False), (0.2 / 3, {"guarantee": ""}, False),
])  # fmt: skip
def test_a_speed_up_above_tokens_a_forward_is_suspicious(results, seconds, engine, suspicious):
    made = alone(results, seconds, **engine)
    assert by_name(made)["suffix"].suspicious is suspicious
    assert not by_name(made)["greedy"].suspicious
    sheet = sheet_of_results(made, "greedy")
    assert ("Suspicious" in " ".join(sheet.doubts)) is suspicious


def test_only_plain_autoregressive_decoding_alone_bounds_speed(results):
    made = alone(results, 0.2 / 3)
    canvas = replace(made, engines=tuple(
        replace(e, reference="static") if e.reference else replace(e, name="static")
        for e in made.engines), records=tuple(
        replace(r, engine="static") if r.engine == "greedy" else r for r in made.records
    ))  # fmt: skip
    assert not by_name(canvas)["suffix"].suspicious
    batches = replace(made, records=tuple(r for r in made.records if r.batch == 4))
    assert not by_name(batches)["suffix"].suspicious


def test_two_results_are_paired(results):
    found = {change.name: change for change in changes(results, faster(results, 2.0))}
    assert found["fast"].speed.value == pytest.approx(2.0)
    assert (found["fast"].same, found["fast"].items) == (8, 8)
    row = cells(columns(None), found["fast"])
    assert row[:4] == ("fast", "95.0", "190", "2.00 (2.00 to 2.00)")
    assert row[5:7] == ("2.00 -> 2.00", "2.50 -> 2.50")


def test_a_ratio_repeats_where_the_intervals_overlap(results):
    twice = replace(results, records=tuple(
        replace(r, decode_seconds=r.decode_seconds / 2) if r.engine == "fast" else r
        for r in results.records
    ))  # fmt: skip
    slower = faster(twice, 0.1)  # As on another machine, every engine takes ten times as long.
    assert common_baseline(twice, slower, None) == "plain"
    found = {change.name: change for change in changes(twice, slower, "plain")}
    assert found["fast"].speed.value == pytest.approx(0.1)
    assert [each.value for each in found["fast"].over] == pytest.approx([2.0, 2.0])
    assert found["fast"].repeats is found["loose"].repeats is True
    found = {change.name: change for change in changes(results, slower, "plain")}
    assert found["fast"].repeats is False
    assert heads(columns("plain"))[-3:] == ("x plain before", "x plain now", "repeats")
    row = cells(columns("plain"), found["fast"])
    assert row[-3:] == ("1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)", "no")


def test_a_baseline_must_be_in_both(results):
    other = replace(results, engines=results.engines[1:])
    assert common_baseline(results, other, "fast") == "fast"
    with pytest.raises(InvalidInput, match="baseline"):
        common_baseline(results, other, "plain")


def test_only_what_both_have_is_compared(results):
    fewer = replace(
        results, items=results.items[:3],
        records=tuple(r for r in results.records if r.item in ("p0", "p1", "p2")),
    )  # fmt: skip
    assert {change.items for change in changes(results, fewer)} == {3}
    longer = replace(results, items=tuple(replace(i, max_tokens=99) for i in results.items))
    with pytest.raises(InvalidInput, match="in common"):
        changes(results, longer)


def test_other_machines_and_settings_are_said(results):
    assert warnings(results, results) == []
    other = replace(results, machine=replace(results.machine, cores=64),
                    settings={"temperature": 1.0})  # fmt: skip
    found = " ".join(warnings(results, other))
    assert "machine.cores was 2, now 64" in found
    assert "settings.temperature was 0.0, now 1.0" in found
