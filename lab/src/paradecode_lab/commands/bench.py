"""`paradecode bench`: measure quality and speed of methods side by side; compare two results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paradecode.cli.console import err, out
from paradecode.cli.options import Loading, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import open_progress, stopping
from paradecode.cli.tables import print_table
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode_lab.commands.load import load

SUITES = ("generation", "parallel")
BRIEF = 5
"""Number of a sheet's columns that the terminal shows; files show all."""

bench_app = typer.Typer(
    help="Measure the speed and the quality of methods side by side.", add_completion=False
)


@dataclass(frozen=True)
class PromptOptions:
    """Options of the suite `generation`: what it decodes, and with which settings."""

    prompts: str | None = option(
        None, "Prompts: JSONL, JSON or text file, folder of texts, hub:owner/dataset."
    )
    per_group: int | None = option(None, "Use at most this many prompts of each kind of task.")
    max_tokens: int | None = option(None, "Upper bound for each prompt's own number of tokens.")
    rounds: int = option(1, "Repeat every measurement this many times.")
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    draft_model: str | None = option(None, "Use this draft model for methods that need one.")


@dataclass(frozen=True)
class TaskOptions:
    """Options of the suite `parallel`: which tasks it decodes."""

    tasks: list[str] | None = option(
        None, "parallel: a task, `simple` or `graded`; repeat. Default: simple.", "--task"
    )
    instances: int = option(50, "For `parallel`: held-out instances of each task.")


@grouped
def bench(
    context: typer.Context,
    loading: Loading,
    workload: PromptOptions,
    drawn: TaskOptions,
    suite: str = option(SUITES[0], f"One of: {', '.join(SUITES)}."),
    decoders: list[str] | None = option(
        None,
        "Method to measure; repeat. By default a few.",
        "--decoder --method -d",
        sets="decoder",
    ),
    batch: str = option("1", "Decode this many requests at a time; several sizes: 1,2,4,8,16."),
    seed: int = option(0, "Seed of sampling, of instances and of the order.", min=0),
    output: Path | None = option(None, "JSON of results; a page goes beside it.", "--output -o"),
) -> None:
    """Compare decoders: `generation` on prompts, `parallel` on tasks for diffusion models.

    The same command resumes after Ctrl-C.
    """
    if context.invoked_subcommand is not None:
        return
    if suite not in SUITES:
        raise InvalidInput("suite", suite, f"use one of {', '.join(SUITES)}")
    target = output or Path(f"{suite}.json")
    writable("--output", target, ".json")
    sizes = _sizes(batch)
    _refuse_unused(context, drawn if suite == SUITES[0] else workload, suite)
    if suite == "parallel":
        if len(sizes) > 1:
            raise InvalidInput("batch", batch, "the parallel suite takes one size")
        _parallel(loading, drawn, tuple(decoders or ()), sizes[0], seed, target)
    else:
        _generation(loading, workload, tuple(decoders or ()), sizes, seed, target)


def _generation(
    loading: Loading, workload: PromptOptions, decoders: tuple[str, ...], sizes: tuple[int, ...],
    seed: int, output: Path,
) -> None:  # fmt: skip
    from paradecode_lab.measure.figures import aggregates, figures
    from paradecode_lab.measure.machine import weights_of
    from paradecode_lab.measure.prompt_sources import read_prompts
    from paradecode_lab.measure.report.from_results import sheet_of_results
    from paradecode_lab.measure.report.write import write_beside
    from paradecode_lab.measure.result_files import write_results
    from paradecode_lab.measure.suites.generation.suite import GenerationPlan, measure

    plan = GenerationPlan(
        decoders, tuple(read_prompts(workload.prompts)), workload.per_group, workload.max_tokens,
        sizes, workload.rounds, SamplingParams(temperature=workload.temperature, seed=seed),
    )  # fmt: skip
    plan.check()
    weights, journal = weights_of(loading.model or "default"), output.with_suffix(".jsonl")
    opening = {"limits": plan.limits(), "draft_model": workload.draft_model}
    with loading.open(**opening) as llm, _measuring(journal) as progress:
        results = measure(llm, weights, plan, journal, loading.settings(), progress)
    found = figures(results)
    plain = found[0].name if found else None
    write_results(results, output, aggregates(found, plain))
    files = [output]
    if found:
        sheet = sheet_of_results(results, plain)
        files += write_beside(sheet, output)
        head, rows = sheet.table()
        print_table(("method", *head[:BRIEF]), [(line.name, *own[:BRIEF]) for line, own in rows])
        _doubts(sheet.doubts)
    broken = [each.name for each in found if each.verdict == "broken"]
    for name in broken:
        err.print(f"[red]not plain decoding's output:[/] {escape(name)}")
    _end(files, results.failed, bool(broken))


def _parallel(
    loading: Loading, drawn: TaskOptions, methods: tuple[str, ...], batch: int, seed: int,
    output: Path,
) -> None:  # fmt: skip
    from paradecode_lab.measure.machine import weights_of
    from paradecode_lab.measure.report.from_parallel import sheet_of_parallel
    from paradecode_lab.measure.report.write import write_beside
    from paradecode_lab.measure.result_files import write_results
    from paradecode_lab.measure.suites.parallel import suite as parallel
    from paradecode_lab.measure.suites.parallel.columns import BRIEF
    from paradecode_lab.measure.suites.parallel.summary import summarise
    from paradecode_lab.measure.suites.parallel.verdicts import verdicts
    from paradecode_lab.measure.tables import cells, heads

    plan = parallel.ParallelPlan(methods, tuple(drawn.tasks or ()), drawn.instances, batch, seed)
    plan.check()
    loading = replace(loading, model=loading.model or plan.model)
    weights, journal = weights_of(loading.model or ""), output.with_suffix(".jsonl")
    with loading.open() as llm, _measuring(journal) as progress:
        results = parallel.measure(llm, weights, plan, journal, loading.settings(), progress)
    summaries, found = summarise(results), verdicts(results)
    write_results(results, output, parallel.aggregates(results, summaries, found))
    sheet = sheet_of_parallel(results)
    files = [output, *write_beside(sheet, output, ("frontier", "tasks"))]
    print_table(heads(BRIEF), [cells(BRIEF, summary) for summary in summaries])
    _doubts(sheet.doubts)
    for verdict in found:
        out.print(f"[bold]{verdict.word}[/]: {escape(verdict.target)}")
        for line in verdict.evidence:
            out.print(f"  {escape(line)}", highlight=False)
    _end(files, results.failed)


def _end(files: list[Path], failed: Mapping[str, str], is_bad: bool = False) -> None:
    """Print what could not be measured and which files were written.

    The command exits with status 1 if something was not measured, or if ``is_bad``.

    Args:
        failed: name of what was not measured -> the reason.
    """
    for name, reason in failed.items():
        err.print(f"[yellow]not measured[/] {escape(f'{name}: {reason}')}", highlight=False)
    for file in files:
        out.print(str(file), soft_wrap=True, highlight=False)
    if failed or is_bad:
        raise typer.Exit(1)


@grouped
def compare(
    before: Annotated[Path, typer.Argument(help="The older result of `bench` or `make bench`.")],
    now: Annotated[Path, typer.Argument(help="The newer result, from the same suite.")],
    baseline: str | None = option(
        None, "Engine of both: are speed-ups over it the same within intervals?"
    ),
) -> None:
    """Show what changed between two results, for everything that both measured."""
    from paradecode_lab.measure.report.compare import compare_files

    found = compare_files(before, now, baseline)
    for warning in found.warnings:
        err.print(f"[yellow]differs:[/] {escape(warning)}", highlight=False)
    print_table(found.head, found.rows)
    _doubts(found.doubts)


def _doubts(doubts: Iterable[str]) -> None:
    """Print the reasons to doubt the figures that were printed before."""
    for doubt in doubts:
        out.print(f"[yellow]{escape(doubt)}[/]", highlight=False)


@contextmanager
def _measuring(journal: Path) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while measuring; at Ctrl-C, print how to go on.

    Yields:
        A function that takes the number of new results and the number of all results.
    """
    said = f"stopped; the same command goes on from {escape(str(journal))}"
    with stopping(said), open_progress() as progress:
        bar = progress.add_task("generations", total=None)
        yield lambda new, total: progress.update(bar, advance=new, total=total)


def _refuse_unused(
    context: typer.Context, options: PromptOptions | TaskOptions, suite: str
) -> None:
    """Raise InvalidInput for an option that was set, but that the chosen suite does not use."""
    names = {each.name: each.opts[0] for each in context.command.params}
    for each in fields(options):
        value = getattr(options, each.name)
        if value != each.default:
            fix = f"leave it out: the suite {suite} does not use it"
            raise InvalidInput(names[each.name], value, fix)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("batch", text, "give whole numbers, such as 1,2,4,8,16") from None


bench_app.callback(invoke_without_command=True)(bench)
bench_app.command()(compare)
bench_app.command()(load)
