"""Tests figures, verdicts, tables and files of the suite ``parallel`` from known results."""

import json
from dataclasses import asdict, replace

import pytest
from parallel_runs import PLAIN, Behaviour, good, make

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.report.compare import method_changes
from paradecode_lab.measure.report.from_parallel import sheet_of_parallel
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.statistics import RESAMPLES, frontier, gain, interval
from paradecode_lab.measure.suites.parallel.suite import aggregates
from paradecode_lab.measure.suites.parallel.summary import summarise
from paradecode_lab.measure.suites.parallel.verdicts import is_lossless, verdicts
from repository import ROOT


def judged(results):
    return summarise(results), verdicts(results)


def words(results):
    return [verdict.word for verdict in verdicts(results)]


def changed(method: str, behaviour: Behaviour, count: int = 200):
    """Return the good results with another behaviour of one method."""
    other = make({method: behaviour}, count)
    records = tuple(r for r in good().records if r.engine != method) + other.records
    return replace(good(), records=records)


def test_costs_a_token_and_ratios_are_those_of_the_totals():
    by_name = {summary.method: summary for summary in summarise(good())}
    threshold = by_name["threshold"]
    assert threshold.total.per_forward.value == pytest.approx(8 / 6)
    assert threshold.total.rows == pytest.approx(320 / 8)
    assert threshold.total.per_second.value == pytest.approx(100)
    versus = threshold.versus
    assert versus.forwards.value == pytest.approx(32 / 6)
    assert versus.rows.value == versus.seconds.value == pytest.approx(4)
    assert versus.forwards.low == pytest.approx(versus.forwards.high)  # All items cost the same.
    assert by_name["static"].versus is None
    dual = by_name["static(block_length=8,cache=dual)"]
    assert dual.plain.rows.value == pytest.approx(3.2)


def test_exact_match_is_counted_task_by_task():
    steps = next(s for s in summarise(good()) if s.method == "static(steps=2)")
    assert (steps.total.right, steps.total.items) == (200, 400)
    assert (steps.tasks["copy"].exact.value, steps.tasks["shuffle"].exact.value) == (1, 0)
    assert steps.versus.gain.value == -0.5
    assert steps.versus.gain.low < -0.5 < steps.versus.gain.high < -0.4
    assert steps.versus.identical == 200


def test_a_method_that_missed_an_item_is_not_shown():
    results = good()
    cut = replace(results, records=results.records[:-1])
    assert "freedave" not in [summary.method for summary in summarise(cut)]
    assert words(cut)[1] == "not measured"


def test_paired_gain():
    assert gain([(True, False)] * 3 + [(False, True)] + [(True, True)] * 6).value == pytest.approx(
        0.2
    )
    same = gain([(True, True)] * 1000)
    assert same.value == 0
    assert 0 < same.high < 0.005
    assert same.low == -same.high
    all_lost = gain([(False, True)] * 10)
    assert -1 <= all_lost.low < all_lost.high < 0


def test_no_loss_needs_enough_instances():
    assert is_lossless(gain([(True, True)] * 400))
    assert not is_lossless(gain([(True, True)] * 20))
    assert not is_lossless(gain([(True, True)] * 385 + [(False, True)] * 15))


def test_all_targets_are_met_by_results_that_meet_them():
    assert words(good()) == ["met"] * 4
    lines = "\n".join(line for verdict in verdicts(good()) for line in verdict.evidence)
    for needed in ("`threshold`: 5.33x", "400 of 400 outputs identical", "3.20x", "copy +0.0"):
        assert needed in lines


@pytest.mark.first(2)
@pytest.mark.parametrize(("method", "behaviour", "missed"), [
    ("credit", Behaviour(9), 0),
    ("credit", Behaviour(8, breaks=lambda task, number: number < 20), 0),
    ("freedave", Behaviour(22), 1), ("freedave", Behaviour(16, changes=True), 1),
    ("static(block_length=8,cache=dual)", Behaviour(32, 700), 2),
    ("static(steps=2)", Behaviour(2), 3),
    ("static(steps=2)", Behaviour(2, breaks=lambda task, number: True), 3),
],
    ids=["too few", "loss", "too few drafts", "other tokens", "rows", "no collapse", "all fall"]
)  # fmt: skip
def test_a_target_that_is_missed_is_seen(method, behaviour, missed):
    expected = ["met"] * 4
    expected[missed] = "missed"
    assert words(changed(method, behaviour)) == expected


def test_what_was_not_run_is_not_judged():
    assert words(make({"static": PLAIN})) == ["not measured"] * 4
    assert words(make({"threshold": PLAIN})) == ["not measured"] * 4
    assert words(make({"static": PLAIN, "static(steps=2)": PLAIN}, tasks=["copy"]))[3] == (
        "not measured"
    )


def test_every_line_with_a_speed_has_its_quality():
    head, rows = sheet_of_parallel(good()).table()
    quality, speed = head.index("exact match"), head.index("tokens/s")
    assert [line.name for line, _ in rows]
    assert all("%" in cells[quality] and cells[speed] for _, cells in rows)


def test_a_run_of_a_few_batches_says_that_it_is_too_short():
    """A run of a few batches is reported as too short, although its answers have eight tokens.

    The tokens that count are those of a canvas, which has 32 positions.
    """
    few = make({"static": PLAIN, "threshold": Behaviour(6)}, count=2)
    said = "Too short: 4 batches of 32 tokens; the interval of threshold is 4.00 to 4.00."
    for results, short in ((few, said), (good(), "")):
        found = aggregates(results, *judged(results))
        assert found["too_short"] == short
        assert sheet_of_parallel(results).doubts == ((short,) if short else ())


def test_the_picture_by_task_has_methods_that_differ_in_how_much_they_decide():
    lines = {line.name: line.by_parallelism for line in sheet_of_parallel(good()).lines}
    shown = {name for name, points in lines.items() if points}
    assert shown == {"static", "static(steps=2)", "threshold", "factor"}
    tokens, quality = lines["static(steps=2)"]["shuffle (several)"]
    assert (tokens.value, quality.value) == (4, 0)


def test_frontier_is_what_nothing_beats():
    assert frontier([(1, 90), (2, 95), (3, 80), (2, 70), (4, 80)]) == [1, 4]


def test_figures_of_a_committed_file_follow_from_its_records(monkeypatch):
    monkeypatch.setitem(interval.__kwdefaults__, "resamples", RESAMPLES)
    path = ROOT / "bench/results/tiny_diffusion.json"
    written = json.loads(path.read_text("utf-8"))["aggregates"]["methods"][0]["total"]
    results = read_results(path)
    assert results.is_parallel
    found = asdict(summarise(results)[0].total)
    for name in ("exact", "per_forward", "per_deciding", "per_second"):
        assert found[name] == pytest.approx(written[name], rel=1e-5)  # Six digits are written.
    assert found["rows"] == pytest.approx(written["rows"], rel=1e-5)


def test_two_results_are_compared_on_what_both_have():
    before = make({"static": PLAIN, "threshold": Behaviour(8), "factor": Behaviour(8)})
    now = make({"static": PLAIN, "threshold": Behaviour(4), "credit": Behaviour(8)}, count=100)
    found = {change.method: change for change in method_changes(before, now)}
    assert found.keys() == {"static", "threshold"}
    assert found["threshold"].versus.forwards.value == pytest.approx(2)
    assert (found["threshold"].versus.items, found["static"].versus.identical) == (200, 200)
    with pytest.raises(InvalidInput, match="in common"):
        method_changes(before, make({"static": PLAIN}, tasks=["sort"]))


def test_batches_of_two_share_their_seconds():
    results = make({"static": PLAIN}, count=2, tasks=["copy"])
    both = tuple(replace(r, batch=2, unit=0, wall_seconds=0.2) for r in results.records)
    (summary,) = summarise(replace(results, records=both))
    assert summary.total.per_second.value == pytest.approx(16 / 0.4)
    assert summary.total.items == 2
