"""`paradecode bench load`: put load on OpenAI-compatible servers, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import Json, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import open_progress, stopping
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode_lab.measure.prompts import Conversation
    from paradecode_lab.measure.suites.load.plan import LoadPlan
    from paradecode_lab.measure.tables import Column, Shown


@grouped
def load(
    endpoints: Annotated[
        list[str],
        typer.Option("--endpoint", "-e", help="Server as NAME=URL; repeat to compare them."),
    ],
    concurrency: list[int] | None = option(
        None, "Closed loop: number of clients; repeat for more.", "--concurrency -c"
    ),
    rates: list[float] | None = option(
        None, "Open loop: send this many requests a second; repeat for more.", "--rate"
    ),
    arrivals: str = option("poisson", "Arrival times in an open loop: poisson or constant."),
    requests: int = option(32, "Send this many requests in each round.", "--requests -n"),
    rounds: int = option(3, "Number of rounds; the order of the endpoints changes."),
    warmup: int = option(2, "Least requests before each round that do not count."),
    prompts: Path | None = option(None, "A .jsonl, or a text with a prompt a line; has a default."),
    max_tokens: int | None = option(None, "Upper bound for each prompt's own number of tokens."),
    model: str | None = option(None, "Model's name on the servers; default: the first."),
    body: list[str] | None = option(
        None, "Add fields to requests: JSON for all endpoints, NAME=JSON for one."
    ),
    api: str = option("chat", "Use this part of the API: chat or completions."),
    count: str = option(
        "usage", "Count tokens by the server's usage fields (usage), or by one tokenizer for all."
    ),
    tokenizer: str | None = option(
        None, "Count with the tokenizer of this model; by default of the default model."
    ),
    slo_ttft: float | None = option(None, "Goodput: most seconds to the first token."),
    slo_tpot: float | None = option(None, "Goodput: most seconds per later token."),
    timeout: float = option(300.0, "A request fails after this many seconds."),
    seed: int = option(0, "Seed of prompts, order and arrival times.", min=0),
    key: str | None = option(
        None, "Key for the servers.", "--api-key", envvar="PARADECODE_API_KEY"
    ),
    output: Path | None = option(
        None, "JSON file of results; a journal and a picture go beside it.", "--output -o"
    ),
    json: Json = False,
) -> None:
    """Measure TTFT, TPOT, throughput and goodput of OpenAI-compatible servers under load.

    With `-o`, the same command resumes after Ctrl-C. The exit status is 1 if a request failed.
    """
    from paradecode_lab.measure.suites.load.asks import read_asks
    from paradecode_lab.measure.suites.load.plan import LoadPlan, OfferedLoad, read_endpoints

    if find_spec("aiohttp") is None:
        raise InvalidInput(
            "aiohttp", None, "install it: pip install -e 'lab[load]' in the checkout"
        )
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
    if output is not None:
        writable("--output", output, ".json")
    journal = output and output.with_suffix(".jsonl")
    if drive(plan, asks, output, journal, json, key=key, tokenizer=tokenizer):
        raise typer.Exit(1)


def drive(
    plan: LoadPlan, asks: Sequence[Conversation], output: Path | None, journal: Path | None,
    json: bool = False, **more: Any,
) -> bool:  # fmt: skip
    """Measure under a progress bar, print and write the result.

    Args:
        journal: file of results from an interrupted run, which are not measured again.
        more: arguments of :func:`paradecode_lab.measure.suites.load.suite.measure`.

    Returns:
        Whether a request failed.
    """
    from paradecode_lab.measure.suites.load import report
    from paradecode_lab.measure.suites.load.suite import measure
    from paradecode_lab.measure.suites.load.summary import summarise

    total = plan.rounds * len(plan.endpoints) * sum(map(plan.requests_of, plan.loads))
    how = f"the same command goes on from {journal}" if journal else "nothing was written"
    if journal and journal.exists():
        err.print(escape(f"what {journal} has is not measured again"), highlight=False)
    with stopping(escape(f"stopped; {how}")), open_progress() as progress:
        bar = progress.add_task("starting", total=total)

        def tell(what: str, ended: int) -> None:
            progress.update(bar, advance=ended, description=escape(what) if what else None)

        results = measure(plan, asks, journal=journal, tell=tell, **more)
    summaries = summarise(results)
    failed = report.failures(summaries)
    for line in [*failed, *report.warnings(summaries)]:
        err.print(f"[yellow]{escape(line)}[/]", highlight=False)
    files = report.write_report(results, summaries, output) if output else []
    if json:
        print_json(report.document(results, summaries))
    else:
        out.print(escape(report.headline(results)), highlight=False)
        _print_columns(report.THROUGHPUT, summaries)
        _print_columns(report.LATENCY, report.latencies(summaries))
        for file in files:
            out.print(str(file), soft_wrap=True, highlight=False)
    return bool(failed)


def _print_columns(columns: Sequence[Column[Shown]], lines: Iterable[Shown]) -> None:
    """Print a table whose first two columns are text and whose other columns are numbers."""
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
