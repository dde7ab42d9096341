"""The ways that the figure of hybrids compares."""

from __future__ import annotations

from paradecode.methods.registry import parse
from tools.figures.hybrids import WAYS


def test_each_group_begins_with_what_the_others_are_compared_with() -> None:
    for group, (first, *others) in WAYS.items():
        specs = [parse(way) for way in (first, *others)]
        assert len({spec.method.family for spec in specs}) == 1
        assert group in {spec.method.name for spec in specs}
        if group == "deer":
            assert {spec.guarantee for spec in specs} == {"exact"}
