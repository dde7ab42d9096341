"""The suite from model to files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.measure.charts.style import can_draw
from paradecode.measure.machine import commit, describe
from paradecode.measure.provenance import digest, versions
from paradecode.measure.suites.parallel.journal import Journal
from paradecode.measure.suites.parallel.methods import REFERENCE, canonical, default_methods
from paradecode.measure.suites.parallel.pictures import draw_all
from paradecode.measure.suites.parallel.report import report
from paradecode.measure.suites.parallel.results import Results, write_results
from paradecode.measure.suites.parallel.run import choose_tasks, make_items, run_all, units_of
from paradecode.measure.suites.parallel.summary import Summary, summarise
from paradecode.measure.suites.parallel.verdicts import Verdict, verdicts

DEFAULT_MODEL = "paradecode/tiny-diffusion"


@dataclass(frozen=True)
class ParallelPlan:
    """What to measure.

    Attributes:
        methods: specs, the default list if empty; the reference comes first in any case.
        tasks: names, all if empty.
        instances: held-out ones of each task.
        batch: how many are decoded together.
        seed: of instances and order.
    """

    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    instances: int = 50
    batch: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raise InvalidInput for what can be refused before a model is loaded."""
        choose_tasks(self.tasks)
        canonical(self.methods)
        if not 1 <= self.batch <= 1024:
            raise InvalidInput("batch", self.batch, "give a whole number from 1 to 1024")

    def specs(self, has_blocks: bool) -> list[str]:
        """The methods in full, the reference first; ``has_blocks`` as in ``default_methods``."""
        return canonical([REFERENCE, *(self.methods or default_methods(has_blocks))])


def measure(
    llm: LLM,
    weights: Path,
    plan: ParallelPlan,
    journal: Path,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> Results:
    """Run the plan, or what an interrupted run has left of it.

    Args:
        llm: opened with ``settings``, of which the journal is told.
        weights: its file or folder.
        journal: file of the answers as they come.
        progress: told (batches that are new, batches in all).

    Raises:
        InvalidInput: the model or the plan cannot be used, or the journal is another run's.
    """
    if llm.config.mask_token is None:
        fix = "the parallel suite needs a masked diffusion model, such as " + DEFAULT_MODEL
        raise InvalidInput("model", llm.model, fix)
    items = make_items(llm, choose_tasks(plan.tasks), plan.instances, plan.seed)
    units, methods = units_of(items, plan.batch), plan.specs(llm.config.attention == "block")
    own = {**settings, "backend": llm.backend.name, "batch": plan.batch, "seed": plan.seed}
    facts = {"model": llm.model, "weights": digest(weights), **own}
    kept = Journal(journal, facts)
    total = len(methods) * len(units)
    failed = run_all(llm, methods, units, kept, plan.seed, lambda new: progress(new, total))
    keys = [tuple(item.id for item in unit) for unit in units]
    return Results(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit(Path(__file__).parent),
        versions=versions(),
        model=llm.model,
        weights=str(facts["weights"]),
        machine=describe(),
        settings=own,
        methods=tuple(methods),
        items=tuple(items),
        runs=tuple(
            kept.runs[method, key] for method in methods for key in keys
            if (method, key) in kept.runs
        ),
        failed=failed,
    )  # fmt: skip


def write_files(
    results: Results, output: Path, summaries: Sequence[Summary], found: Sequence[Verdict]
) -> list[Path]:
    """JSON, Markdown beside it and, where matplotlib is there, two pictures; returns the files."""
    text = output.with_suffix(".md")
    aggregates = {
        "methods": [asdict(summary) for summary in summaries],
        "verdicts": [asdict(verdict) for verdict in found],
    }
    write_results(results, output, aggregates)
    text.write_text(report(results, summaries, found), "utf-8")
    drawn = draw_all(results, summaries, output.with_suffix("")) if summaries and can_draw() else []
    return [output, text, *drawn]


def judged(results: Results) -> tuple[list[Summary], list[Verdict]]:
    """All figures of a result."""
    return summarise(results), verdicts(results)
