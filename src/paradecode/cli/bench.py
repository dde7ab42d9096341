"""`paradecode bench`: quality and speed of methods side by side, and two results compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paradecode.cli.console import err, out
from paradecode.cli.options import Loading, grouped
from paradecode.core.errors import InvalidInput

SUITES = ("parallel",)
LOADING = Loading(model="paradecode/tiny-diffusion")
STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""

bench_app = typer.Typer(help="Measure methods side by side: quality beside every speed.")


@grouped
def bench(
    context: typer.Context,
    loading: Loading = LOADING,
    suite: Annotated[str, typer.Option(help=f"One of: {', '.join(SUITES)}.")] = SUITES[0],
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", "-d", help="A method; repeat for more. Default: all of them."),
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A task; repeat for more. Default: all.")
    ] = None,
    instances: Annotated[int, typer.Option(help="Held-out instances of each task.")] = 50,
    batch: Annotated[int, typer.Option(help="Requests decoded together.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the instances and the order.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="JSON; .md and pictures go beside it.")
    ] = Path("parallel.json"),
) -> None:
    """Every diffusion policy and setting on tasks with checkable answers.

    Ctrl-C stops; the same command goes on.
    """
    if context.invoked_subcommand is not None:
        return
    if suite not in SUITES:
        raise InvalidInput("suite", suite, f"use one of {', '.join(SUITES)}")
    from paradecode.bench.suites.parallel import suite as parallel

    plan = parallel.Plan(tuple(methods or ()), tuple(tasks or ()), instances, batch, seed)
    plan.check()
    if output.suffix != ".json" or not output.absolute().parent.is_dir():
        raise InvalidInput("output", str(output), "name a .json file in a folder that exists")
    model = loading.model or parallel.DEFAULT_MODEL
    weights = parallel.weights_of(model)
    opened = {name: value for name, value in vars(loading).items() if name != "model"}
    journal = output.with_suffix(".jsonl")
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    try:
        with loading.open() as llm, Progress(*columns, console=err) as progress:
            bar = progress.add_task("batches", total=None)

            def tell(new: int, total: int) -> None:
                progress.update(bar, advance=new, total=total)

            results = parallel.measure(llm, weights, plan, journal, opened, tell)
    except KeyboardInterrupt:
        err.print(f"stopped; the same command goes on from {escape(str(journal))}")
        raise typer.Exit(STOPPED) from None
    summaries, found = parallel.judged(results)
    files = parallel.write_files(results, output, summaries, found)
    from paradecode.bench.suites.parallel.report import BRIEF, brief

    _print_table(BRIEF, [brief(summary) for summary in summaries])
    for verdict in found:
        out.print(f"[bold]{verdict.word}[/]: {escape(verdict.target)}")
        for line in verdict.evidence:
            out.print(f"  {escape(line)}", highlight=False)
    for method, reason in results.failed.items():
        err.print(f"[yellow]not measured[/] {escape(method)}: {escape(reason)}", highlight=False)
    for file in files:
        out.print(str(file), soft_wrap=True, highlight=False)
    if results.failed:
        raise typer.Exit(1)


def compare(
    before: Annotated[Path, typer.Argument(help="A result of `paradecode bench`.")],
    now: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """What changed from one result to another, method by method, on the instances of both."""
    from paradecode.bench.suites.parallel import compare as comparing
    from paradecode.bench.suites.parallel.results import read_results

    found = comparing.changes(read_results(before), read_results(now))
    _print_table(comparing.HEAD, comparing.rows(found))


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table()
    table.add_column(escape(head[0]), overflow="fold")
    for cell in head[1:]:
        table.add_column(escape(cell), justify="right")
    for cells in rows:
        table.add_row(*(escape(cell) for cell in cells))
    out.print(table)


bench_app.callback(invoke_without_command=True)(bench)
bench_app.command()(compare)
