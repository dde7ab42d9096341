"""What `make test` leaves to CI: further instances of a guarantee, which are marked ``wide``.

A test that crosses several axes (decorators ``parametrize`` above one another) keeps a diagonal:
each value of each axis occurs once, and the other combinations are wide. ``@pytest.mark.first(n)``
keeps the first n of these only. ``@pytest.mark.wide`` leaves a whole test to CI.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

ALL_EXAMPLES = 100
"""Examples of a property that says nothing itself, in CI: the profile `thorough`."""


def examples(count: int) -> settings:
    """Settings for a property that has ``count`` examples in CI, and a share of them elsewhere."""
    return settings(max_examples=max(1, count * settings().max_examples // ALL_EXAMPLES))


def turning(cases: Sequence[Any], turn: int, count: int, always: int = 0) -> list[Any]:
    """Cases of which the first ``always`` are kept, and ``count`` more that change with ``turn``.

    The others are wide. Lists with as many cases and turns 0, 1, ... keep each case equally often.
    """
    rest = len(cases) - always
    kept = {always + (turn * count + place) % rest for place in range(min(count, rest))}
    return [
        pytest.param(case, marks=() if place < always or place in kept else pytest.mark.wide)
        for place, case in enumerate(cases)
    ]


def mark_wide(items: Iterable[pytest.Item]) -> None:
    """Mark as wide what no test of the first tier has to run."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if hasattr(item, "callspec") and not {"slow", "wide"} & item.keywords.keys():
            tests[item.nodeid.partition("[")[0]].append(item)
    for instances in tests.values():
        kept = diagonal([_values(item) for item in instances])
        first = instances[0].get_closest_marker("first")
        kept = kept if first is None else kept[: first.args[0]]
        for place, item in enumerate(instances):
            if place not in kept:
                item.add_marker("wide")


def _values(item: pytest.Item) -> dict[str, Hashable]:
    """The value on each axis: of a ``parametrize``, or of a fixture with parameters."""
    params = item.callspec.params  # type: ignore[attr-defined]
    axes = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [axis.replace(" ", "").split(",") if isinstance(axis, str) else axis for axis in axes]
    names += [[name] for name in params if not any(name in axis for axis in names)]
    return {",".join(axis): tuple(id(params[name]) for name in axis) for axis in names}


def diagonal(instances: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """The places of the instances to keep: each value of each axis occurs in one of them.

    Args:
        instances: for each of them its value on every axis.
    """
    numbers = defaultdict[str, dict[Hashable, int]](dict)
    for values in instances:
        for axis, value in values.items():
            numbers[axis].setdefault(value, len(numbers[axis]))

    def off(values: Mapping[str, Hashable]) -> bool:
        """Whether no step along all axes at once leads here."""
        steps = {
            frozenset(range(numbers[axis][value], longest, len(numbers[axis])))
            for axis, value in values.items()
        }
        return not frozenset.intersection(*steps)

    longest = max((len(each) for each in numbers.values()), default=0)
    kept, seen = [], set[tuple[str, Hashable]]()
    for place in sorted(range(len(instances)), key=lambda place: off(instances[place])):
        if not seen.issuperset(instances[place].items()):
            seen.update(instances[place].items())
            kept.append(place)
    return kept
