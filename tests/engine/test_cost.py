"""The cost curve is interpolated, measured and saved, and it follows the machine."""

import json
import random

import pytest

from paradecode import LLM
from paradecode.engine import cost
from paradecode.engine.cost import CostCorrection, CostCurve, Load
from paradecode.testing.toy import ToyBackend

CURVE = CostCurve((1, 2, 4), (64, 256), ((1.0, 2.0, 3.0), (2.0, 3.0, 5.0)))
PAGES = 8


@pytest.mark.parametrize(("rows", "context", "seconds"), [
    (1, 64, 1.0), (3, 64, 2.5), (2, 160, 2.5), (1, 0, 1.0), (8, 64, 5.0), (1, 448, 3.0),
])  # fmt: skip
def test_between_and_beyond_the_grid(rows: int, context: int, seconds: float) -> None:
    assert CURVE.at(rows, context) == pytest.approx(seconds)


def test_a_single_point_holds_everywhere() -> None:
    assert CostCurve((4,), (64,), ((0.5,),)).at(100, 9000) == 0.5


def test_measuring_keeps_to_what_fits_and_never_falls() -> None:
    backend = ToyBackend()
    backend.reserve(PAGES)
    seen: list[tuple[int, int]] = []
    curve = cost.measure(
        backend, PAGES, (1, 2, 8, 4096), (16, 100_000), 3, lambda *at: seen.append(at)
    )
    assert (curve.rows, curve.contexts) == ((1, 2, 8), (16,))
    assert all(a <= b for a, b in zip(curve.seconds[0], curve.seconds[0][1:], strict=False))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_measuring_a_slow_model_ends_sooner(monkeypatch) -> None:
    backend = ToyBackend()
    backend.reserve(PAGES)
    monkeypatch.setattr(cost, "LONG", 0.0)
    seen: list[tuple[int, int]] = []
    cost.measure(backend, PAGES, (1, 2), (16,), 40, lambda *at: seen.append(at))
    assert seen == [*((turn, 40) for turn in range(1, cost.ENOUGH_REPEATS + 1)), (40, 40)]


@pytest.fixture
def backend(tmp_path, monkeypatch) -> ToyBackend:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend = ToyBackend()
    backend.reserve(PAGES)
    return backend


def test_a_saved_curve_comes_back(backend: ToyBackend) -> None:
    assert cost.load(backend) is None
    cost.save(backend, CURVE)
    assert cost.load(backend) == CURVE
    assert cost.obtain(backend, PAGES) == CURVE


@pytest.mark.parametrize("damage", [
    "", "{", "[]", "null", "{}", json.dumps({"rows": [1], "contexts": [1], "seconds": [[-1.0]]}),
    json.dumps({"rows": [2, 1], "contexts": [1], "seconds": [[1.0, 1.0]]}),
    json.dumps({"rows": [1, 2], "contexts": [1], "seconds": [[1.0]]}),
    json.dumps({"rows": [], "contexts": [], "seconds": []}),
    '{"rows": [1], "contexts": [1], "seconds": [[NaN]]}',
])  # fmt: skip
def test_a_damaged_memory_is_no_memory(backend: ToyBackend, damage: str) -> None:
    path = cost.save(backend, CURVE)
    path.write_text(damage, "utf-8")
    assert cost.load(backend) is None


MEASURED = CostCurve((1, 2, 4, 8), (256,), ((0.002, 0.0021, 0.0025, 0.004),))


def seconds(rows: int) -> float:
    return MEASURED.at(rows, 256)


def test_forwards_as_measured_change_nothing() -> None:
    correction = CostCorrection(MEASURED)
    for rows in (1, 3, 8, 20):
        assert correction.observe([(rows, seconds(rows))] * 50, 256) is MEASURED


def test_a_slower_machine_is_slower_for_all_rows() -> None:
    correction = CostCorrection(MEASURED)
    curve = correction.observe([(4, 1.5 * seconds(4))] * 200, 256)
    assert curve.at(4, 256) == pytest.approx(1.5 * seconds(4), rel=0.03)
    assert curve.at(8, 256) == pytest.approx(1.5 * seconds(8), rel=0.1)
    assert curve.at(1, 256) == pytest.approx(1.5 * seconds(1), rel=0.1)
    again = correction.observe([(4, seconds(4))] * 200, 256)
    assert again.at(4, 256) == pytest.approx(seconds(4), rel=0.03)


def test_what_is_wrong_for_some_rows_is_learned() -> None:
    """Corrections learn that forwards of 1 row are faster than measured and of 8 rows slower.

    Between these sizes the measured times stay.
    """
    correction, draw = CostCorrection(MEASURED), random.Random(0)
    truth = {1: 0.88 * seconds(1), 4: seconds(4), 8: 1.2 * seconds(8)}
    for _ in range(2000):
        rows = draw.choice(list(truth))
        curve = correction.observe([(rows, truth[rows] * draw.uniform(0.9, 1.1))], 256)
    for rows, taken in truth.items():
        assert curve.at(rows, 256) == pytest.approx(taken, rel=0.04)
    assert curve.sound


def test_one_forward_that_was_kept_off_its_core_moves_little() -> None:
    correction = CostCorrection(MEASURED)
    curve = correction.observe([(4, 50 * seconds(4))], 256)
    assert curve.at(4, 256) < 1.1 * seconds(4)


def test_more_rows_never_cost_less() -> None:
    correction = CostCorrection(MEASURED)
    curve = correction.observe([(2, 0.02)] * 500, 256)
    times = [curve.at(rows, 256) for rows in range(1, 12)]
    assert times == sorted(times)


def test_a_curve_that_somebody_sets_stays() -> None:
    load, correction, slow = Load(), CostCorrection(MEASURED), [(4, 0.01)] * 100
    correction.correct(load, slow, 256)
    assert load.curve is None
    load.curve = MEASURED
    correction.correct(load, slow, 256)
    assert load.curve is correction.curve is not MEASURED
    load.curve = MEASURED
    correction.correct(load, slow, 256)
    assert load.curve is MEASURED


def test_forwards_of_the_engine_correct_its_curve() -> None:
    """Forwards of the engine correct a curve that says one second a forward.

    The smallest model never takes that long.
    """
    pytest.importorskip("paradecode.backends.native._core")
    slow = CostCurve((1,), (256,), ((1.0,),))
    with LLM("paradecode/tiny-autoregressive") as llm:
        llm.engine.load.curve = slow
        llm.complete("a", max_tokens=32, ignore_eos=True, decoder="greedy")
        assert llm.engine.load.curve is slow  # Its correction is another curve's.
        llm.engine.correction = CostCorrection(slow)
        llm.complete("a", max_tokens=32, ignore_eos=True, decoder="greedy")
        assert llm.engine.load.curve.at(1, 256) < 0.5
