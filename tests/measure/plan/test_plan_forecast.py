"""Bytes, placements and drafts of a plan against formulas, and what a plan refuses."""

import json
from dataclasses import asdict, replace
from math import prod
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve
from paradecode.models.config import uniform
from paradecode.models.mixture import Mixture
from paradecode.models.tiny import KINDS, tiny_checkpoint
from paradecode_lab.measure.plan.described import MEASURED, Device, Link, PlacedLayers, Plan
from paradecode_lab.measure.plan.forecast import WIDTHS, PlanForecast, Work
from paradecode_lab.measure.plan.pieces import FEED, anatomy_of, by_bits

LAYERS = 4
CONFIG = uniform("four", "llama", 100, 64, LAYERS, 4, 2, 16, 96, context_length=4096)
MODEL = anatomy_of(CONFIG, by_bits(16))
WEIGHTS = 2 * sum(map(prod, CONFIG.tensors().values()))
KEPT = 2 * 2 * 2 * 16 * LAYERS
"""Bytes of keys and values of a token."""
FAST = Device(bandwidth=1e9, operations=1e18)
"""Its bandwidth is what limits it."""
SLOW = Device(bandwidth=1e18, operations=1e9)


def forecast(plan: Plan, **work: float) -> PlanForecast:
    return PlanForecast(plan, MODEL, build(Work, {"passes": 1, **work}))


def halves(**machines: Device) -> Plan:
    first, last = machines
    stages = (PlacedLayers(first, "0-1"), PlacedLayers(last, "2-3"))
    return Plan(machines, stages, (Link((first, last), 1e6, 0.25),))


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_are_the_whole_model(kind):
    config, _ = tiny_checkpoint(kind)
    found = anatomy_of(config, by_bits(16)).pieces
    assert sum(each.stored for each in found) == 2 * sum(map(prod, config.tensors().values()))


def test_one_machine_reads_the_bytes_at_its_bandwidth():
    context = 300
    read = WEIGHTS - 2 * 100 * 64 + 2 * 64  # One row of the embeddings.
    seconds = (read + KEPT * (context + 1)) / 1e9
    found = forecast(Plan({"one": FAST}), context=context).outcome(1)
    assert found.a_token == pytest.approx(seconds, rel=1e-12)
    assert found.a_second == pytest.approx(1 / seconds, rel=1e-12)


def test_one_machine_makes_the_operations_at_its_speed():
    matrices = sum(prod(s) for n, s in CONFIG.tensors().items() if len(s) == 2 and n != "embed")
    attended = 2 * 4 * 16 * LAYERS
    found = forecast(Plan({"one": SLOW}), context=300, batch=3, rows=2, acceptance=0.0).outcome(2)
    assert found.first == pytest.approx(6 * 2 * (matrices + attended * 302) / 1e9, rel=1e-12)


def test_a_window_bounds_what_attention_reads():
    near = anatomy_of(CONFIG.altered(sliding_window=64), by_bits(16)).pieces[1]
    whole = MODEL.pieces[1]
    assert near.nbytes(1, 4000) == near.nbytes(1, 64) == whole.nbytes(1, 64) < whole.nbytes(1, 65)
    assert near.memory(4000, 3) - near.stored == 3 * 64 * KEPT / LAYERS


def test_rows_read_the_experts_that_they_choose():
    mixture = Mixture(experts=8, chosen=2, expert_size=32)
    config = uniform("e", "llama", 100, 64, 1, 4, 2, 16, 96, mixture=mixture, context_length=64)
    feed = next(p for p in anatomy_of(config, by_bits(8)).pieces if p.kind == FEED)
    assert feed.expert_bytes == 3 * 32 * 64
    assert [feed.touched(rows) for rows in (1, 2)] == pytest.approx([2, 2 + 6 * 2 / 8])
    assert feed.products == 8 * 64 + 2 * 3 * 32 * 64


def test_states_cross_the_link_and_the_token_comes_back():
    plan = halves(a=FAST, b=FAST)
    alone = forecast(Plan({"one": FAST}), context=10, passes=3).outcome(1)
    found = forecast(plan, context=10, passes=3).outcome(1)
    sent, back = 0.25 + 4 * 64 / 1e6, 0.25 + 4 / 1e6
    assert found.first == pytest.approx(alone.first + sent, rel=1e-12)
    assert found.a_token == pytest.approx(alone.a_token + sent + back, rel=1e-12)
    assert found.busy.keys() == {"a", "b", "a>b", "b>a"}


def test_attention_apart_visits_the_machines_by_turns():
    stages = (PlacedLayers("a", "0-3", "attention"), PlacedLayers("f", "0-3", "feed"))
    plan = Plan({"a": FAST, "f": FAST}, stages, (Link(("a", "f"), 1e9),), head="a")
    assert [machine for machine, _ in plan.visits(MODEL.pieces)] == ["a", "f"] * 4 + ["a"]
    held = forecast(plan, context=100).memory
    feed = 2 * LAYERS * (3 * 64 * 96 + 64)
    assert held == {"a": WEIGHTS - feed + KEPT * 101, "f": feed}


def test_drafts_pay_where_bytes_bound_a_pass_and_not_where_operations_do():
    work = {"context": 100, "acceptance": 0.8}
    reading, computing = (forecast(Plan({"one": device}), **work) for device in (FAST, SLOW))
    rows = reading.outcomes()
    assert [each.rows for each in rows] == list(WIDTHS)
    assert [each.tokens for each in rows] == pytest.approx([(1 - 0.8**k) / 0.2 for k in WIDTHS])
    assert rows[-1].a_second > 3 * rows[0].a_second
    assert reading.record(rows)["drafts_pay"]
    slow = computing.record(computing.outcomes())
    assert (slow["best_rows"], slow["drafts_pay"]) == (1, False)


def test_a_draft_model_elsewhere_takes_its_time():
    plan = build(Plan, {
        "machines": {"target": asdict(FAST), "helper": asdict(FAST)},
        "stages": [{"machine": "target", "layers": "0-3"}],
        "links": [{"ends": ["target", "helper"], "bandwidth": 1e6, "latency": 0.125}],
        "draft": {"machine": "helper", "model": "small"},
    })  # fmt: skip
    small = anatomy_of(CONFIG.altered(layers=1), by_bits(16))
    work = Work(context=100, passes=1, acceptance=0.5)
    free = PlanForecast(replace(plan, draft=None), MODEL, work).outcome(3)
    alone = PlanForecast(Plan({"one": FAST}), small, work).outcome(1)
    found = PlanForecast(plan, MODEL, work, small).outcome(3)
    sent = 0.125 + 4 * 3 / 1e6
    assert found.first == pytest.approx(free.first + 2 * alone.first + sent, rel=1e-9)


def test_measured_times_are_shared_by_the_layers_and_read_again():
    curves = {
        kind: CostCurve((1, 2), (32,), ((t, 2 * t),)) for kind, t in zip(MEASURED, (1, 8, 16, 5))
    }
    device = Device(measured={"four": curves})
    plan = halves(a=device, b=device)
    again = build(Plan, json.loads(json.dumps(asdict(plan))))
    assert asdict(again) == asdict(plan)
    found = forecast(again, context=32).outcome(1)
    sent = 0.25 + 4 * 64 / 1e6
    assert found.first == pytest.approx(2 * 1 + 8 + 16 + 5 + sent)
    with pytest.raises(InvalidInput, match=r"machines\.a\.bandwidth"):
        PlanForecast(again, replace(MODEL, name="other"), Work())


SPEEDS = {"bandwidth": 1e9, "operations": 1e9}
TWO = {"machines": {"a": SPEEDS, "b": SPEEDS}}


@pytest.mark.parametrize(("described", "said"), [
    ({"machines": {}}, "machines: it is empty"),
    ({"machines": {"a": {"bandwidth": 1e9}}}, "machines.a.operations: nothing is given"),
    ({"machines": {"a": {**SPEEDS, "bandwidth": -1}}}, "machines.a.bandwidth: -1"),
    ({"machines": {"a": {**SPEEDS, "memory": float("nan")}}}, "machines.a.memory: nan"),
    ({"machines": {"a": {**SPEEDS, "speed": 1}}}, "machines.a.speed: 1"),
    ({"machines": {"a": {**SPEEDS, "memory": 1000}}}, "machines.a.memory: 1000.0 .* must hold"),
    (TWO, "stages: nothing is given"),
    ({**TWO, "stages": [{"machine": "c", "layers": "0-3"}]}, r"stages\[0\].machine: 'c'"),
    ({**TWO, "stages": [{"machine": "a", "layers": "0-4"}]}, "'0-4' .* layers 0 to 3"),
    ({**TWO, "stages": [{"machine": "a", "layers": "3-0"}]}, r"stages\[0\].layers: '3-0'"),
    ({**TWO, "stages": [{"machine": "a", "layers": "0-2"}]}, "stages: 'layer 3' .* place its"),
    ({**TWO, "stages": [{"machine": "a", "layers": "0-3", "part": "feed"}]}, "place its attention"),
    ({**TWO, "stages": [{"machine": "a", "layers": "0-3"}, {"machine": "b", "layers": "2"}]},
     r"stages\[1\].layers: 2 .* a and b have its attention: place it once"),
    ({**TWO, "stages": [{"machine": "a", "layers": "0-1"}, {"machine": "b", "layers": "2-3"}]},
     "links: 'a, b' .* describe this link"),
    ({**TWO, "links": [{"ends": ["a", "a"], "bandwidth": 1}]}, r"links\[0\].ends"),
    ({**TWO, "links": [{"ends": ["a", "c"], "bandwidth": 1}]}, r"links\[0\].ends: 'c'"),
    ({**TWO, "links": [{"ends": ["a", "b"], "bandwidth": 0}]}, r"links\[0\].bandwidth: 0"),
    ({"machines": {"a": {"measured": {"four": {}}}}}, "machines.a.measured.four: it is empty"),
    ({"machines": {"a": {"measured": {"four": {k: {"rows": [1], "contexts": [1], "seconds": [[0]]}
                                              for k in MEASURED}}}}}, "four.visit: .* above 0"),
])  # fmt: skip
def test_a_wrong_plan_is_refused_by_the_name_of_its_field(described, said):
    with pytest.raises(InvalidInput, match=said):
        PlanForecast(build(Plan, described), MODEL, Work(passes=2)).outcomes()


@pytest.mark.parametrize(("work", "said"), [
    ({"context": -1}, "context: -1"), ({"acceptance": 2}, "acceptance: 2"),
    ({"flights": 4096, "passes": 65536}, "passes: 65536 .* visits"),
])  # fmt: skip
def test_wrong_work_is_refused(work, said):
    with pytest.raises(InvalidInput, match=said):
        forecast(Plan({"one": FAST}), **work).outcomes()


def test_the_command_shows_tables_or_json(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"machines": {"gpu": {**SPEEDS, "operations": 1e15}}}))
    given = ["plan", str(file), "--model", "default", "--acceptance", "0.8"]
    run = CliRunner().invoke(app, given)
    assert run.exit_code == 0, run.output
    assert "30 attention, 30 feed-forward" in run.stdout
    assert "Drafts pay: 32 rows give" in run.stdout
    record = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert record["best_rows"] == 32
    assert record["outcomes"][0]["bound"] == "gpu"
    run = CliRunner().invoke(app, [*given, "--bits", "-1"])
    assert isinstance(run.exception, InvalidInput)
