"""The cost curve is interpolated, measured and remembered."""

from __future__ import annotations

import json

import pytest

from paradecode.engine import cost
from paradecode.engine.cost import CostCurve
from paradecode.testing.toy import ToyBackend

CURVE = CostCurve((1, 2, 4), (64, 256), ((1.0, 2.0, 3.0), (2.0, 3.0, 5.0)))
PAGES = 8


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [(1, 64, 1.0), (3, 64, 2.5), (2, 160, 2.5), (1, 0, 1.0), (8, 64, 5.0), (1, 448, 3.0)],
)
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
    assert curve.rows == (1, 2, 8)
    assert curve.contexts == (16,)
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


@pytest.mark.parametrize(
    "damage",
    [
        "", "{", "[]", "null", "{}",
        json.dumps({"rows": [1], "contexts": [1], "seconds": [[-1.0]]}),
        json.dumps({"rows": [2, 1], "contexts": [1], "seconds": [[1.0, 1.0]]}),
        json.dumps({"rows": [1, 2], "contexts": [1], "seconds": [[1.0]]}),
        json.dumps({"rows": [], "contexts": [], "seconds": []}),
        '{"rows": [1], "contexts": [1], "seconds": [[NaN]]}',
    ],
)  # fmt: skip
def test_a_damaged_memory_is_no_memory(backend: ToyBackend, damage: str) -> None:
    path = cost.save(backend, CURVE)
    path.write_text(damage, "utf-8")
    assert cost.load(backend) is None
