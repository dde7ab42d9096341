"""Tests what a replay reports, and that it gives the same results when repeated."""

import json
import pickle
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from workloads import CURVE, engine_runs, items, recording_of, toy

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode_lab.measure.replay import ReplayOutcome, between, play
from paradecode_lab.measure.replay.between import Gap, Stopwatch, cold_seconds, slowdown
from paradecode_lab.measure.replay.outcome import outcome_record, outcome_table
from paradecode_lab.measure.replay.recording import Timing

PARAMS = SamplingParams(seed=5)
MADE = recording_of(toy(), items(4, tokens=24), PARAMS)
SPEC = "prompt-lookup(budget=fixed,num_speculative_tokens=3)"


def without_clock(outcome: ReplayOutcome) -> ReplayOutcome:
    still = (replace(r, python_seconds=0.0, drafter_seconds=0.0) for r in outcome.requests)
    return replace(outcome, requests=tuple(still))


def test_counts_are_those_of_the_engines_own_statistics():
    outcome, totals = play(MADE, SPEC), play(MADE, SPEC).totals()
    stats = [s.stats for s in engine_runs(toy(), items(4, tokens=24), PARAMS, SPEC)]
    assert totals.generated == sum(s.generated for s in stats)
    assert totals.forwards == sum(s.forwards for s in stats)
    assert totals.drafted == sum(s.drafted for s in stats)
    assert totals.accepted == sum(s.accepted for s in stats) > 0
    assert totals.drafts == sum(s.drafts for s in stats)
    for depth, accepted in enumerate(totals.accepted_at):
        assert accepted == sum(s.accepted_per_position[depth] for s in stats
                            if depth < len(s.accepted_per_position))  # fmt: skip
    assert totals.mean_acceptance_length == 1 + totals.accepted / totals.drafts
    assert totals.forwards_saved == totals.generated - totals.forwards
    parts = [outcome.totals(name) for name in outcome.groups]
    assert sum(part.accepted for part in parts) == totals.accepted


def test_it_repeats_and_can_be_sent_to_another_process():
    outcome = play(MADE, SPEC)
    assert without_clock(outcome) == without_clock(play(MADE, SPEC))
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_forward_time_is_the_curves_for_every_later_forward():
    flat = CostCurve((1, 2), (64,), ((1.0, 1.0),))
    outcome = play(MADE, SPEC, curve=flat)
    for request in outcome.requests:
        assert request.forward_seconds == pytest.approx(request.forwards - 1)
    slower = replace(MADE, timing=Timing(forward=0.5))
    for request in play(slower, SPEC, curve=flat).requests:
        assert request.forward_seconds == pytest.approx(1.5 * (request.forwards - 1))
    wider = replace(MADE, timing=Timing(row=0.25))
    for request in play(wider, SPEC, curve=flat).requests:
        rows = sum(step.tokens for step in request.steps[1:])
        assert request.forward_seconds == pytest.approx(request.forwards - 1 + 0.25 * rows)


def test_plain_decoding_is_the_unit_of_speed():
    plain = play(MADE, "greedy")
    assert plain.exact
    assert plain.totals().forwards_saved == 0
    assert plain.speed_up(plain) == 1.0
    cheap = play(MADE, SPEC, curve=CostCurve((1, 2), (64,), ((1.0, 1.0),)))
    dear = play(MADE, SPEC, curve=CostCurve((1, 2), (64,), ((1.0, 9.0),)))
    assert cheap.speed_up(plain) > dear.speed_up(plain)


def test_an_automatic_budget_follows_the_curve_it_is_given():
    steep = CostCurve((1, 2), (64,), ((1.0, 50.0),))
    assert play(MADE, "prompt-lookup", curve=steep).totals().drafted < (
        play(MADE, "prompt-lookup", curve=CURVE).totals().drafted
    )


def test_a_subset_is_played_alone():
    outcome = play(MADE, SPEC, prompts=["p2", "p0"])
    assert [request.id for request in outcome.requests] == ["p0", "p2"]
    for wrong in (["nobody"], []):
        with pytest.raises(InvalidInput, match="prompts"):
            play(MADE, SPEC, prompts=wrong)


def test_the_report_has_every_method_and_group():
    plain, outcome = play(MADE, "greedy"), play(MADE, "token-recycling(budget=fixed)")
    record = json.loads(json.dumps(outcome_record(outcome, plain)))
    assert record["exact"] is False
    assert record["groups"].keys() == {"a", "b"}
    assert record["total"]["accepted"] == outcome.totals().accepted
    table = outcome_table([outcome], plain)
    assert table.row_count == 2
    assert table.caption
    # Each group has only two requests.
    assert outcome_table([outcome], plain, by_group=True).row_count == 2
    over = outcome.interval(plain)
    assert over.value == pytest.approx(outcome.speed_up(plain))
    assert over.low <= over.value <= over.high
    assert record["total"]["speed_up_interval"] == [over.low, over.high]
    assert "Too short: 4 prompts of 24 tokens" in str(table.caption)


def test_groups_of_three_and_more_have_rows():
    made = recording_of(toy(), items(7, tokens=24), PARAMS)
    plain, outcome = play(made, "greedy"), play(made, SPEC)
    assert outcome_table([outcome], plain, by_group=True).row_count == 2 * (1 + 2)


def test_a_warm_gap_counts_as_a_cold_one():
    gaps = [Gap(1e-4, False), Gap(3e-4, True), Gap(3e-4, False), Gap(5e-4, True)]
    assert slowdown(gaps) == pytest.approx(2.0)
    assert cold_seconds(gaps, 2.0) == pytest.approx(2e-4 + 3e-4 + 6e-4 + 5e-4)
    assert slowdown(gaps[:1]) == slowdown([]) == 1.0  # There is nothing to compare with.


def test_every_few_gaps_begin_cold():
    watch = Stopwatch(every=3)
    for _ in range(8):
        watch.forward_begins()
        watch.forward_ends()
    assert [gap.cold for gap in watch.gaps] == [False, False, True, False, False, True, False]
    assert all(gap.seconds > 0 for gap in watch.gaps)
    watch.open()  # The time between two requests does not count.
    watch.forward_begins()
    assert watch.gaps == []


def test_plain_decoding_takes_the_python_that_was_measured(monkeypatch):
    # The clock advances by a second each time it is read.
    clock = SimpleNamespace(thread_time=count().__next__)
    monkeypatch.setattr(between, "time", clock)
    made = replace(MADE, timing=Timing(python=5e-3))
    totals = play(made, "greedy").totals()
    assert totals.python_seconds == pytest.approx(5e-3 * totals.later)
