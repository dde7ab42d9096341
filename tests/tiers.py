"""Selects what `make test` leaves to CI: further instances of a guarantee, marked ``wide``.

A test that crosses several axes (decorators ``parametrize`` above one another) keeps a diagonal:
each value of each axis occurs once, and the other combinations are wide. ``@pytest.mark.first(n)``
keeps only the first n instances of the diagonal. ``@pytest.mark.wide`` leaves a whole test to CI.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

ALL_EXAMPLES = 100
"""Number of examples, in CI's profile `thorough`, of a property that does not set a number."""


def examples(count: int) -> settings:
    """Return settings of a property with ``count`` examples in CI, and fewer elsewhere."""
    return settings(max_examples=max(1, count * settings().max_examples // ALL_EXAMPLES))


def turning(cases: Sequence[Any], turn: int, count: int, always: int = 0) -> list[Any]:
    """Keep the first ``always`` cases, and ``count`` more that change with ``turn``.

    The other cases are marked wide. Lists of equal length with the turns 0, 1, ... keep each case
    equally often.
    """
    rest = len(cases) - always
    kept = {always + (turn * count + place) % rest for place in range(min(count, rest))}
    return [
        pytest.param(case, marks=() if place < always or place in kept else pytest.mark.wide)
        for place, case in enumerate(cases)
    ]


def mark_wide(items: Iterable[pytest.Item]) -> None:
    """Mark as wide the instances that `make test` does not have to run."""
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
    """Return a test's value on each axis: a ``parametrize`` or a fixture with parameters."""
    params = item.callspec.params  # type: ignore[attr-defined]
    axes = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [axis.replace(" ", "").split(",") if isinstance(axis, str) else axis for axis in axes]
    names += [[name] for name in params if not any(name in axis for axis in names)]
    return {",".join(axis): tuple(id(params[name]) for name in axis) for axis in names}


def diagonal(instances: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Return the indices of the instances to keep: they have each value of each axis at least once.

    Args:
        instances: the value of each instance on every axis.
    """
    numbers = defaultdict[str, dict[Hashable, int]](dict)
    for values in instances:
        for axis, value in values.items():
            numbers[axis].setdefault(value, len(numbers[axis]))

    def off(values: Mapping[str, Hashable]) -> bool:
        """Decide whether an instance is off the diagonal, which steps on all axes at once."""
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
