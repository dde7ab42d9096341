"""The ways that the figure of hybrids compares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.testing.trained_parts import joint_layer
from paradecode_lab.measure.tasks.tasks import SETS, tasks_named
from tools.figures.hybrids import JOINT, SHIPPED, TARGET, ZERO, Ways, measured, trained


def test_each_group_begins_with_what_the_others_are_compared_with(tmp_path: Path) -> None:
    for layer in (JOINT, ZERO):
        (tmp_path / layer).parent.mkdir(exist_ok=True)
        joint_layer().save(tmp_path / layer)
    for group, _, ways, draft, _ in [*SHIPPED, *trained(tmp_path, "simple")]:
        specs = [parse(way) for way in ways]
        assert len({spec.method.family for spec in specs}) == 1 + (len(ways) > 2) * (
            group == "wedlm"
        )
        if draft is not None:
            assert {spec.guarantee for spec in specs} == {"exact"}
            assert group in {spec.method.name for spec in specs}


@pytest.mark.parametrize("tasks", SETS)
def test_trained_models_are_decoded_as_the_model_that_they_began_with(tasks: str) -> None:
    ways: dict[str, list[tuple[str, ...]]] = {}
    for group, _, own, _, asked in trained(Path("runs"), tasks):
        assert asked == SETS[tasks]
        ways.setdefault(group, []).append(tuple(own))
    layers = ways.pop("joint-sampler")  # Its part is a file, and its model one that ships.
    assert [len(own) for own in layers] == [7]
    for first, *others in ways.values():  # The first model has no mask for wedlm.
        assert others
        assert {each[: len(first)] for each in others} == {first}


def test_runs_can_be_repeated(monkeypatch) -> None:
    """Some ways draw noise at temperature 0, too."""
    told, real = set(), LLM.complete

    def complete(self, prompts, *given, **how):
        if not given:  # The warm-up gives its parameters in one piece.
            told.add((how["decoder"], how["temperature"], how["seed"]))
        return real(self, prompts, *given, **how)

    monkeypatch.setattr(LLM, "complete", complete)
    ways = ("greedy", "jacobi(explore=always)")
    given = SimpleNamespace(instances=1, batch=1, rounds=1, max_tokens=4, trained="")
    rows = measured(Ways("jacobi", TARGET, ways, tasks=tasks_named("simple")[:2]), given)
    assert [row["outputs"] for row in rows] == [2, 2]
    assert told == {(way, 0, 0) for way in ways}
