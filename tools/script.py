"""Shared by all scripts: options, tables, and results with their date, machine and commit."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paradecode_lab.measure.machine import Stamp, stamp
from paradecode_lab.measure.result_files import write_json
from paradecode_lab.measure.tables import Column, markdown
from tools.pages.marked import put

REPOSITORY = Path(__file__).parents[1]
OUT = REPOSITORY / "bench" / "out"
"""Folder of environments, converted models and runs, which are not committed."""

err = Console(stderr=True)
Row = Mapping[str, Any]
Columns = Mapping[str, "str | Callable[[Row], str]"]
"""Name of a column -> its cell: a format string for a row's fields, or a function of the row."""


def options(description: str | None, **defaults: Any) -> ArgumentParser:
    """Return a parser with ``--out``, and an option for each keyword, with the type of its default.

    Args:
        description: the script's docstring, which the help shows.
        defaults: name of an option -> its default.
    """
    _begun()
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser


def tabulate(
    parser: ArgumentParser,
    columns: Sequence[Column[Row]],
    measured: Callable[[Namespace], dict[str, Any]],
) -> None:
    """Measure, or read the result in a first RUN that is a JSON file; print, save and insert it.

    The parser gets the options ``RUN...``, ``--model`` and ``--into PAGE``. The rows of the result
    are in its field ``ways``, and PAGE has marks named as the JSON file.
    """
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--model")
    parser.add_argument("--into", type=Path, help="a page with marks named as the JSON")
    given = parser.parse_args()
    known = bool(given.runs) and given.runs[0].suffix == ".json"
    made = json.loads(given.runs[0].read_text("utf-8")) if known else measured(given)
    table = markdown(columns, made["ways"])
    print(table)
    save(made, given.out)
    if given.into:
        put(given.into, (given.out or given.runs[0]).stem, f"\n{table}\n")


def show(rows: Iterable[Row], columns: Columns, width: int | None = None) -> None:
    """Print a table ``width`` characters wide; None takes the terminal's width."""
    table = Table(*columns)
    for row in rows:
        cells = (f.format_map(row) if isinstance(f, str) else f(row) for f in columns.values())
        table.add_row(*map(escape, cells))
    Console(width=width).print(table)


def said_by(code: str) -> Any:
    """Run Python code in a new process, and return the JSON that it prints."""
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True,
                         cwd=REPOSITORY)  # fmt: skip
    return json.loads(run.stdout)


def stamped(**facts: Any) -> dict[str, Any]:
    """Return the facts of a result after its date, machine and commit."""
    now = _begun()
    head = {"date": now["created"][:10], "machine": asdict(now["machine"])}
    return {**head, "commit": now["commit"], **facts}


@cache
def _begun() -> Stamp:
    """Return the date, machine and commit at which the script began.

    Later commits do not count, because a long run measures the code that it has imported.
    """
    return stamp(REPOSITORY)


def saved(out: Path | None, name: str, facts: Row) -> list[Row]:
    """Return the rows ``name`` that an earlier call of the script has saved, so that it can resume.

    There are none if the day, machine, commit or another fact differs.
    """
    if out is None or not out.exists():
        return []
    found = json.loads(out.read_text("utf-8"))
    rows: list[Row] = found.pop(name, [])
    return rows if found == json.loads(json.dumps(stamped(**facts))) else []


def tell(result: Any, out: Path | None) -> None:
    """Print a result as JSON, and save it."""
    print(json.dumps(result, indent=1))
    save(result, out)


def save(result: Any, out: Path | None) -> None:
    """Write a result as JSON; does nothing if ``out`` is None."""
    if out is not None:
        write_json(result, out)
