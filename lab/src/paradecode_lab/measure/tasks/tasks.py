"""All tasks of the suite ``parallel`` in two sets: simple tasks and graded tasks."""

from __future__ import annotations

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.tasks.arithmetic import ARITHMETIC
from paradecode_lab.measure.tasks.chains import CHAINS
from paradecode_lab.measure.tasks.lists import LISTS
from paradecode_lab.measure.tasks.nested import NESTED
from paradecode_lab.measure.tasks.records import RECORDS
from paradecode_lab.measure.tasks.stories import STORIES
from paradecode_lab.measure.tasks.task import Task

TASKS: tuple[Task, ...] = (*LISTS, *ARITHMETIC, *RECORDS)
GRADED: tuple[Task, ...] = (*CHAINS, *NESTED, *STORIES)
"""Tasks whose answer tokens depend on one another.

The more tokens a forward writes, the fewer answers are right.
"""
SETS = {"simple": TASKS, "graded": GRADED}
BY_NAME = {task.name: task for tasks in SETS.values() for task in tasks}


def tasks_named(name: str) -> tuple[Task, ...]:
    """Return the tasks of a set.

    Raises:
        InvalidInput: no set has this name.
    """
    if name not in SETS:
        raise InvalidInput("tasks", name, f"name one of {', '.join(SETS)}")
    return SETS[name]
