"""Synthetic results of the suite ``parallel``: methods with known answers and costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paradecode_lab.measure.machine import Machine
from paradecode_lab.measure.results import Counts, EngineInfo, ItemInfo, Record, Results

MACHINE = Machine("Test CPU", 2, 2**34, ("avx2",), "Linux x86_64", "3.11")
TASKS = ("copy", "shuffle")
TOKENS = 8


@dataclass(frozen=True)
class Behaviour:
    """The cost of a method for an item of 8 tokens, and which answers it gets wrong.

    Attributes:
        forwards, rows: number of forwards and of computed rows.
        seconds: wall time.
        breaks: (task, number of the item) -> whether the answer is wrong.
        changes: whether all outputs differ from those of other methods.
    """

    forwards: int
    rows: int = 320
    seconds: float = 0.08
    breaks: Callable[[str, int], bool] = lambda task, number: False
    changes: bool = False


def make(
    methods: Mapping[str, Behaviour], count: int = 200, tasks: Sequence[str] = TASKS
) -> Results:
    """Return results of every method on ``count`` items of each task, decoded one at a time."""
    items = tuple(
        ItemInfo(f"{task}/0/{n}", f"{task}/0/{n}", task, 5, 32, f"{task}: {n}", str(n))
        for task in tasks
        for n in range(count)
    )
    records = []
    for method, own in methods.items():
        counts = Counts(own.forwards, own.rows, deciding=own.forwards)
        for unit, item in enumerate(items):
            number = int(item.id.rpartition("/")[2])
            right = not own.breaks(item.group, number)
            tokens = tuple(range(10 if right and not own.changes else 11, 10 + TOKENS))
            tokens += (0,) * (TOKENS - len(tokens))
            records.append(
                Record(
                    method, item.id, 0, tokens, unit=unit, wall_seconds=own.seconds, right=right,
                    counts=counts, text="text",
                )
            )  # fmt: skip
    return Results(
        created="2030-01-01T00:00:00+00:00", commit="abc", model="toy", machine=MACHINE,
        settings={
            "suite": "parallel", "backend": "native", "threads": 1, "batch": 1, "seed": 0,
            "weights": "0" * 64,
        },
        items=items, records=tuple(records),
        engines=tuple(
            EngineInfo(method, "paradecode", "native", method, versions={"paradecode": "0"})
            for method in methods
        ),
    )  # fmt: skip


PLAIN = Behaviour(forwards=32, rows=1280, seconds=0.32)
"""Plain decoding: one token per forward."""


def good() -> Results:
    """Return results that meet all targets."""
    return make(
        {
            "static": PLAIN,
            "static(steps=2)": Behaviour(2, breaks=lambda task, number: task == "shuffle"),
            "static(block_length=8)": PLAIN,
            "static(block_length=8,cache=dual)": Behaviour(32, 400, 0.16),
            "threshold": Behaviour(6), "factor": Behaviour(7), "credit": Behaviour(8),
            "freedave": Behaviour(16),
        }
    )  # fmt: skip
