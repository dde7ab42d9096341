"""The program of ``make bench``: Paradecode beside its peers, on the same weights and prompts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from paradecode.core.errors import InvalidModel, ParadecodeError
from paradecode.models.catalogue import open_model
from paradecode_lab.measure.machine import usable_cores
from paradecode_lab.measure.prompts import first_of_each_group, load_prompts
from paradecode_lab.measure.report.write import write_run
from paradecode_lab.measure.results import Results
from tools.peers.catalogue import Engine, engines, select
from tools.peers.formats import weights_of
from tools.peers.session import Options, Session
from tools.peers.suites import find_suite
from tools.script import OUT, REPOSITORY, err


def main(
    suite: Annotated[
        str, typer.Argument(help="quick, main or full; the options override it.")
    ] = "main",
    patterns: Annotated[
        str | None, typer.Option("--engines", help="Names, comma-separated; * matches.")
    ] = None,
    decoders: Annotated[
        str, typer.Option(help="Paradecode's methods besides plain, separated by ';'.")
    ] = "prompt-lookup",
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="GGUF file, a run each; default: the default model."),
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL file; default: the built-in.")] = None,
    per_group: Annotated[int | None, typer.Option(min=1, help="Prompts of each group.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=100, help="Repetitions.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Upper bound on the prompts' own.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of every engine; default: all cores.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Engine that speed-ups refer to; default: llama.cpp on the same file."),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="Of the run; the same name resumes it; default: the suite. The name of a model "
            "that was given is added."
        ),
    ] = "",
    retries: Annotated[
        int | None,
        typer.Option(min=0, max=20, help="Repetitions of a measurement others disturbed."),
    ] = None,
    priority: Annotated[
        bool, typer.Option(help="Raise the priority of what is measured, where allowed.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one generation.")] = 300.0,
    show: Annotated[bool, typer.Option("--list", help="List the engines and stop.")] = False,
) -> None:
    """Measure engines side by side; results, tables and plots go to bench/out/runs."""
    specs = [spec.strip() for spec in decoders.split(";") if spec.strip()]
    defaults = find_suite(suite)
    chosen = load_prompts(prompts)
    if per_group or defaults.per_group:
        chosen = first_of_each_group(chosen, per_group or defaults.per_group or 1)
    wanted = [p.strip() for p in patterns.split(",")] if patterns else defaults.engines
    for model in [*models] if models else [None]:
        try:
            checkpoint = open_model(model)
        except InvalidModel as error:  # The other models are measured without it.
            err.print(f"[yellow]{model} skipped:[/] {error}", highlight=False)
            continue
        weights = weights_of(Path(checkpoint.source))
        known = engines(specs, weights)
        if show:
            list_engines(known)
            continue
        options = Options(
            checkpoint=checkpoint,
            engines=select(known, [pattern.format(source=weights) for pattern in wanted]),
            prompts=chosen,
            rounds=rounds or defaults.rounds,
            max_tokens=max_tokens or defaults.max_tokens,
            threads=threads or usable_cores(),
            timeout=timeout,
            urgent=priority,
            retries=defaults.retries if retries is None else retries,
            out=OUT,
            name="-".join([name or suite, *([Path(model).stem] if model else [])]),
        )
        for file in write_run(
            measured(options), options.folder, baseline or f"llama-cpp/{weights}"
        ):
            err.print(str(file.relative_to(REPOSITORY)), soft_wrap=True, highlight=False)


def list_engines(known: Sequence[Engine]) -> None:
    """Print the engines' names, and the package that each of them runs."""
    table = Table("engine", "package")
    for engine in known:
        place = engine.environment
        package = place.build or place.checkout or place.packages[0] if place else "this one"
        table.add_row(engine.name, package)
    Console().print(table)


def measured(options: Options) -> Results:
    """Return the results of one run. An interrupt ends the run and the program."""
    session = Session(options, err)
    try:
        session.prepare()
        session.measure()
        session.close()  # The oracle needs the memory of the workers.
        return session.results()
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    finally:
        session.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app = typer.Typer(add_completion=False)
    app.command()(main)
    try:
        sys.exit(app(standalone_mode=False))  # It returns the exit status of typer.Exit, or None.
    except ParadecodeError as error:
        err.print(f"[red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        err.print("stopped")
        sys.exit(130)
