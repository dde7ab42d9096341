"""`paradecode bench load`: drive OpenAI-compatible servers, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import Json
from paradecode.cli.progress import STOPPED, open_progress
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.measure.tables import Column, Shown


def load(
    endpoints: Annotated[
        list[str],
        typer.Option("--endpoint", "-e", help="NAME=URL; repeat to compare with the first."),
    ],
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", "-c", help="Closed loop: so many clients; repeat for more."),
    ] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", help="Open loop: requests a second; repeat for more."),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Of an open loop: poisson or constant.")
    ] = "poisson",
    requests: Annotated[int, typer.Option("--requests", "-n", help="In each round.")] = 32,
    rounds: Annotated[int, typer.Option(help="Repetitions, endpoints in changing order.")] = 3,
    warmup: Annotated[int, typer.Option(help="Requests before each that do not count.")] = 2,
    prompts: Annotated[
        Path | None, typer.Option(help=".jsonl, or a text with one on a line; default: built-in.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Upper bound on the prompts' own.")] = None,
    model: Annotated[str | None, typer.Option(help="As the servers call it; default: first.")] = (
        None
    ),
    body: Annotated[
        list[str] | None,
        typer.Option(help="More fields of requests: JSON for all, NAME=JSON for one endpoint."),
    ] = None,
    api: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    count: Annotated[
        str, typer.Option(help="Who counts tokens: usage (each server), or one tokenizer for all.")
    ] = "usage",
    tokenizer: Annotated[
        str | None, typer.Option(help="Model whose tokenizer counts; default: the default model.")
    ] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="Seconds to the first token.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="Seconds per token after it.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds one request may take.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Of prompts, order and arrivals.")] = 0,
    key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="PARADECODE_API_KEY", help="Better set as a variable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file; a picture goes beside it.")
    ] = None,
    json: Json = False,
) -> None:
    """Load on OpenAI-compatible servers: TTFT, TPOT, throughput and goodput, with intervals.

    Exit status 1 when a request failed.
    """
    from paradecode.measure.suites.load.asks import read_asks
    from paradecode.measure.suites.load.plan import LoadPlan, OfferedLoad, read_endpoints

    if find_spec("aiohttp") is None:
        raise InvalidInput("aiohttp", None, "install it: pip install 'paradecode[load]'")
    loads = [OfferedLoad(clients=clients) for clients in concurrency or ([] if rates else [1])]
    loads += [OfferedLoad(rate=rate) for rate in rates or []]
    plan = LoadPlan(
        endpoints=read_endpoints(endpoints, body or [], model),
        loads=tuple(dict.fromkeys(loads)), requests=requests, rounds=rounds, warmup=warmup,
        arrivals=arrivals, api=api, max_tokens=max_tokens, timeout=timeout, count=count,
        slo_ttft=slo_ttft, slo_tpot=slo_tpot, seed=seed,
    )  # fmt: skip
    plan.check()
    asks = read_asks(prompts, max_tokens)
    if output is not None and (output.suffix != ".json" or not output.absolute().parent.is_dir()):
        raise InvalidInput("--output", str(output), "name a .json file in a folder that exists")
    from paradecode.measure.suites.load import columns, report
    from paradecode.measure.suites.load.run import measure

    total = plan.requests * plan.rounds * len(plan.loads) * len(plan.endpoints)
    try:
        with open_progress() as progress:
            bar = progress.add_task("starting", total=total)

            def tell(what: str, ended: int) -> None:
                progress.update(bar, advance=ended, description=escape(what) if what else None)

            results, summaries = measure(plan, asks, key, tokenizer, tell)
    except KeyboardInterrupt:
        err.print("stopped; nothing was written")
        raise typer.Exit(STOPPED) from None
    failed = report.failures(summaries)
    for line in [*failed, *report.warnings(summaries)]:
        err.print(f"[yellow]{escape(line)}[/]", highlight=False)
    files = report.write_report(results, summaries, output) if output else []
    if json:
        print_json(report.document(results, summaries))
    else:
        out.print(escape(report.headline(results)), highlight=False)
        _print(columns.THROUGHPUT, summaries)
        _print(columns.LATENCY, columns.latencies(summaries))
        for file in files:
            out.print(str(file), soft_wrap=True, highlight=False)
    if failed:
        raise typer.Exit(1)


def _print(columns: Sequence[Column[Shown]], lines: Iterable[Shown]) -> None:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        text = number < 2
        shown.add_column(
            escape(column.head), justify="left" if text else "right", overflow="fold",
            no_wrap=not text, min_width=4 + 4 * number if text else None,
        )  # fmt: skip
    for line in lines:
        shown.add_row(*(escape(column.cell(line)) for column in columns))
    out.print(shown)
