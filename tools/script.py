"""What all scripts share: options, and results with the date, machine and commit they are of."""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from paradecode.measure.machine import commit, describe

REPOSITORY = Path(__file__).parents[1]
OUT = REPOSITORY / "bench" / "out"
"""Environments, converted models and runs; not committed."""

err = Console(stderr=True)


def options(description: str | None) -> ArgumentParser:
    """A parser with ``--out``; ``description`` is the script's docstring."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser


def stamped(**facts: Any) -> dict[str, Any]:
    """The facts of a result behind its date, machine and commit."""
    head = {"date": date.today().isoformat(), "machine": asdict(describe())}
    return {**head, "commit": commit(REPOSITORY), **facts}


def tell(result: Any, out: Path | None) -> None:
    """Print a result as JSON, and save it."""
    print(json.dumps(result, indent=1))
    save(result, out)


def save(result: Any, out: Path | None) -> None:
    """Write a result as JSON; nothing without a file."""
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
