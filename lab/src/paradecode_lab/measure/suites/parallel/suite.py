"""Builds the suite's cases: held-out instances of tasks, decoded by canvas methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paradecode.core.checks import whole
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode_lab.measure.cases import Cases, Progress, measure_cases
from paradecode_lab.measure.machine import digest
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import ItemInfo, Results
from paradecode_lab.measure.suites.parallel.methods import (
    REFERENCE,
    canonical,
    default_methods,
    plain_of,
)
from paradecode_lab.measure.suites.parallel.summary import MethodSummary, too_short_to_rank
from paradecode_lab.measure.suites.parallel.verdicts import TargetVerdict
from paradecode_lab.measure.tasks.task import Task, TaskInstance
from paradecode_lab.measure.tasks.tasks import BY_NAME, SETS
from paradecode_lab.measure.turns import Unit, units_of

DEFAULT_MODEL = "paradecode/tiny-diffusion"
GRADED_MODEL = "paradecode/graded-diffusion"
MOST_INSTANCES, MOST_BATCH = 10_000, 1024
STEP = 32
"""The length of a canvas is a multiple of this number of positions.

It is 32 for short lists, as in ParallelBench.
"""


@dataclass(frozen=True)
class ParallelPlan:
    """The settings of the suite's measurement.

    Attributes:
        methods: specs of methods; if empty, the default methods. The reference is always the first.
        tasks: names of tasks or of sets of tasks; if empty, the simple tasks.
        instances: number of held-out instances of each task.
        batch: number of instances that are decoded together.
    """

    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    instances: int = 50
    batch: int = 1
    seed: int = 0

    def check(self) -> None:
        """Check everything that can be checked before a model is loaded; raises InvalidInput."""
        choose_tasks(self.tasks)
        canonical(self.methods)
        whole(1, MOST_BATCH)("batch", self.batch)

    @property
    def model(self) -> str:
        """The package's model that was trained for the chosen tasks."""
        simple = {task.name for task in SETS["simple"]}
        chosen = {task.name for task in choose_tasks(self.tasks)}
        return DEFAULT_MODEL if chosen & simple else GRADED_MODEL

    def specs(self, has_blocks: bool) -> list[str]:
        """Return the specs of all methods with their settings, the reference first.

        ``has_blocks`` has the meaning as in ``default_methods``.
        """
        return canonical([REFERENCE, *(self.methods or default_methods(has_blocks))])


def measure(
    llm: LLM,
    weights: Path,
    plan: ParallelPlan,
    journal: Path,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Results:
    """Run the plan, or what an interrupted run has left of it, and return the results.

    Args:
        llm: a model opened with ``settings``.
        weights: file or folder of the model.
        journal: file to which each record is written as soon as it is measured.

    Raises:
        InvalidInput: the model or the plan cannot be used, or the journal belongs to another run.
    """
    if llm.config.mask_token is None:
        fix = "the parallel suite needs a masked diffusion model, such as " + DEFAULT_MODEL
        raise InvalidInput("model", llm.model, fix)
    instances = draw_instances(choose_tasks(plan.tasks), plan.instances, plan.seed)
    items = make_items(llm, instances)
    methods = plan.specs(llm.config.attention == "block")
    cases = Cases(
        specs=[parse(method) for method in methods],
        references={name: plain for name in methods if (plain := plain_of(name)) != name},
        items=[
            ItemInfo(
                item.id, item.prompt, item.group, len(item.token_ids), item.max_tokens,
                instances[item.id].prompt, instances[item.id].answer,
            )
            for item in items
        ],
        units=batches_by_turns(items, plan.batch),
        sampling=SamplingParams(seed=plan.seed),
        check=lambda item, text: BY_NAME[item.group].check(instances[item.id], text),
        settings={
            **settings,
            "suite": "parallel",
            "batch": plan.batch,
            "seed": plan.seed,
            "weights": digest(weights),
        },
    )  # fmt: skip
    return measure_cases(llm, cases, journal, progress)


def choose_tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """Return the tasks with these names or in these sets; the simple tasks without names.

    Raises:
        InvalidInput: a name is neither a task's nor a set's.
    """
    chosen: set[str] = set()
    for name in names or ("simple",):
        if name not in BY_NAME and name not in SETS:
            raise InvalidInput("tasks", name, f"use some of {', '.join([*SETS, *BY_NAME])}")
        chosen |= {task.name for task in SETS.get(name, ())} or {name}
    return tuple(task for task in BY_NAME.values() if task.name in chosen)


def draw_instances(tasks: Sequence[Task], count: int, seed: int) -> dict[str, TaskInstance]:
    """Draw held-out instances, by id. An id consists of the task, the seed and a number.

    Raises:
        InvalidInput: ``count`` is out of range, or a task has fewer instances.
    """
    whole(1, MOST_INSTANCES)("instances", count)
    return {
        f"{task.name}/{seed}/{number}": instance
        for task in tasks
        for number, instance in enumerate(task.held_out(count, seed))
    }


def make_items(llm: LLM, instances: Mapping[str, TaskInstance]) -> list[Item]:
    """Return the inputs.

    Each canvas has room for any reference answer of its task and an end token.
    """
    longest: dict[str, int] = {}
    for one in instances.values():
        length = len(llm.tokenizer.encode(one.answer, special=False)) + 1
        longest[one.task] = max(longest.get(one.task, 0), length)
    items = []
    for name, one in instances.items():
        ids = tuple(llm.chat_tokens([{"role": "user", "content": one.prompt}]))
        items.append(Item(name, name, one.task, ids, -(-longest[one.task] // STEP) * STEP))
    return items


def batches_by_turns(items: Sequence[Item], batch: int) -> list[Unit]:
    """Return batches of one task each: the first batch of every task, then the second, and so on.

    Batches are numbered within their task, so that the numbers stay the same when tasks are added.
    """
    tasks: dict[str, list[Item]] = {}
    for item in items:
        tasks.setdefault(item.group, []).append(item)
    units = (units_of(own, batch) for own in tasks.values())
    return [unit for turn in zip_longest(*units) for unit in turn if unit is not None]


def aggregates(
    results: Results, summaries: Sequence[MethodSummary], found: Sequence[TargetVerdict]
) -> dict[str, Any]:
    """Return the figures that are written into result files, where other programs read them."""
    return {
        "methods": [asdict(summary) for summary in summaries],
        "verdicts": [asdict(verdict) for verdict in found],
        "too_short": too_short_to_rank(results, summaries),
    }
