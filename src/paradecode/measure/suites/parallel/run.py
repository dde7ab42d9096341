"""Runs methods on the instances: every batch by every method, in an order drawn afresh."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import perf_counter

from paradecode.completion import Completion
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.measure.suites.parallel.journal import Journal
from paradecode.measure.suites.parallel.methods import read
from paradecode.measure.suites.parallel.results import Answer, Item, Run
from paradecode.measure.tasks.task import Task
from paradecode.measure.tasks.tasks import BY_NAME, TASKS

MOST_INSTANCES = 10_000
STEP = 32
"""Canvases are a multiple of this long: 32 for short lists, as in ParallelBench."""

Units = Sequence[tuple[Item, ...]]


def choose_tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """Tasks by name, all if there are no names.

    Raises:
        InvalidInput: for a name that is not a task's.
    """
    for name in names:
        if name not in BY_NAME:
            raise InvalidInput("tasks", name, f"use some of {', '.join(BY_NAME)}")
    return tuple(task for task in TASKS if not names or task.name in names)


def make_items(llm: LLM, tasks: Sequence[Task], count: int, seed: int) -> list[Item]:
    """Held-out instances; the canvas has room for every reference answer of the task and its end.

    Raises:
        InvalidInput: ``count`` is out of range, or a task has not that many.
    """
    if not 1 <= count <= MOST_INSTANCES:
        raise InvalidInput("instances", count, f"give a whole number from 1 to {MOST_INSTANCES}")
    items: list[Item] = []
    for task in tasks:
        found = task.held_out(count, seed)
        longest = max(len(llm.tokenizer.encode(i.answer, special=False)) + 1 for i in found)
        canvas = -(-longest // STEP) * STEP
        items += [
            Item(f"{task.name}/{seed}/{number}", task.name, i.prompt, i.answer, canvas)
            for number, i in enumerate(found)
        ]
    return items


def units_of(items: Sequence[Item], batch: int) -> list[tuple[Item, ...]]:
    """Items in groups of ``batch`` of one task, which are decoded together."""
    units: list[tuple[Item, ...]] = []
    for task in dict.fromkeys(item.task for item in items):
        own = [item for item in items if item.task == task]
        units += [tuple(own[first : first + batch]) for first in range(0, len(own), batch)]
    return units


def run_all(
    llm: LLM,
    methods: Sequence[str],
    units: Units,
    journal: Journal,
    seed: int,
    progress: Callable[[int], None],
) -> dict[str, str]:
    """Measure what the journal has not yet.

    Task by task in turn every method gets every batch, so that a slow minute of the machine hurts
    all alike. Before that each method decodes a batch that does not count.

    Args:
        methods: specs.
        seed: of the order, and of policies that draw.
        progress: told how many batches are behind it, those of a method that failed included.

    Returns:
        Method -> why it failed. It is left out from then on; the others are not disturbed.
    """
    keys = {unit: tuple(item.id for item in unit) for unit in units}
    open_: dict[str, list[tuple[Item, ...]]] = {
        method: [unit for unit in units if (method, keys[unit]) not in journal.runs]
        for method in methods
    }
    total = len(methods) * len(units)
    progress(total - sum(map(len, open_.values())))
    failed: dict[str, str] = {}

    def measured(method: str, unit: tuple[Item, ...]) -> Run | None:
        try:
            return play(llm, method, unit, seed)
        except Exception as error:  # Whatever a method does wrong is its own failure.
            failed[method] = f"{type(error).__name__}: {error}"
            progress(len(open_.pop(method)))
            return None

    for method in [method for method in methods if open_[method]]:
        measured(method, units[0])
    for unit in _by_turns(units):
        order = [method for method in open_ if unit in open_[method]]
        random.Random(f"{seed}/{unit[0].id}").shuffle(order)
        for method in order:
            run = measured(method, unit)
            if run is not None:
                journal.keep(run)
                open_[method].remove(unit)
                progress(1)
    return failed


def play(llm: LLM, method: str, unit: Sequence[Item], seed: int = 0) -> Run:
    """Greedy answers of one method to one batch, timed and checked.

    Raises:
        Exception: what ended a request.
    """
    spec = read(method)
    prompts = [llm.chat_tokens([{"role": "user", "content": item.prompt}]) for item in unit]
    started = perf_counter()
    outputs = llm.generate(prompts, max_tokens=unit[0].canvas, seed=seed, decoder=spec)
    seconds = perf_counter() - started
    for output in outputs:
        if output.error is not None:
            raise output.error
    answers = tuple(_answer(item, output) for item, output in zip(unit, outputs))
    return Run(method, tuple(item.id for item in unit), seconds, answers)


def _answer(item: Item, output: Completion) -> Answer:
    tokens = tuple(int(token) for token in output.token_ids)
    deciding = {
        step.forward
        for step in output.trace
        if step.canvas is not None and any(offset < len(tokens) for offset in step.canvas.offsets)
    }
    right = BY_NAME[item.task].accepts(item.prompt, item.answer, output.text.strip())
    stats = output.stats
    return Answer(tokens, output.text, right, stats.forwards, stats.rows, len(deciding))


def _by_turns(units: Units) -> list[tuple[Item, ...]]:
    """One batch of each task, then the next of each."""
    tasks: dict[str, list[tuple[Item, ...]]] = {}
    for unit in units:
        tasks.setdefault(unit[0].task, []).append(unit)
    rounds = max(map(len, tasks.values()), default=0)
    return [own[n] for n in range(rounds) for own in tasks.values() if n < len(own)]
