"""Every task of the parallel suite."""

from __future__ import annotations

from paradecode.bench.parallel.arithmetic import ARITHMETIC
from paradecode.bench.parallel.lists import LISTS
from paradecode.bench.parallel.records import RECORDS
from paradecode.bench.parallel.task import Task

TASKS: tuple[Task, ...] = (*LISTS, *ARITHMETIC, *RECORDS)
BY_NAME = {task.name: task for task in TASKS}
