"""Synthetic results: engines with known speeds."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from paradecode_lab.measure.machine import Machine
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record, Results
from paradecode_lab.measure.statistics import interval

MACHINE = Machine("Test CPU", 2, 2**34, ("avx2",), "Linux x86_64", "3.11")
Make = Callable[..., Results]


@pytest.fixture(autouse=True)
def intervals_have_few_resamples(request, monkeypatch) -> None:
    """Compute intervals with few resamples, since only the tests of statistics need exact ones."""
    if request.module.__name__ != "test_statistics":
        monkeypatch.setitem(interval.__kwdefaults__, "resamples", 1000)


@pytest.fixture
def make_results() -> Make:
    """Return a function that builds results of engines with given decode speeds.

    Its arguments are: tokens a second by engine, number of rounds, relative noise of each time, and
    output lengths by item.
    """

    def make(
        speeds: Mapping[str, float],
        *,
        rounds: int = 3,
        noise: float = 0.0,
        lengths: Sequence[int] = tuple(range(10, 70)),
        seed: int = 0,
    ) -> Results:
        rng = np.random.default_rng(seed)
        items = tuple(
            ItemInfo(f"p{i}", f"p{i}", ("short", "long")[i % 2], 50, max(lengths))
            for i in range(len(lengths))
        )
        records = []
        for number in range(rounds):
            for item, length in zip(items, lengths):
                pace = np.exp(noise * rng.normal())
                for name, speed in speeds.items():
                    own = np.exp(noise * rng.normal())
                    seconds = (length - 1) / speed * pace * own
                    output = tuple(range(100, 100 + length))
                    records.append(Record(name, item.id, number, output, 1, 0.1, seconds, 0.0))
        engines = tuple(
            EngineInfo(name, name.partition("/")[0], "q", name.partition("+")[2] or "plain",
                       name.partition("+")[0] if "+" in name else None,
                       load_seconds=1.5, peak_bytes=200_000_000, versions={"lib": "1.0"})
            for name in speeds
        )  # fmt: skip
        return Results("2030-01-01T00:00:00+00:00", "abc", "toy", MACHINE, {"rounds": rounds},
                       items, engines, tuple(records))  # fmt: skip

    return make
