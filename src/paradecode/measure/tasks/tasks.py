"""Every task of the parallel suite."""

from __future__ import annotations

from paradecode.measure.tasks.arithmetic import ARITHMETIC
from paradecode.measure.tasks.lists import LISTS
from paradecode.measure.tasks.records import RECORDS
from paradecode.measure.tasks.task import Task

TASKS: tuple[Task, ...] = (*LISTS, *ARITHMETIC, *RECORDS)
BY_NAME = {task.name: task for task in TASKS}
