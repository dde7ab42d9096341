"""Downloads of the catalogue's models, on demand or when a command misses one."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.progress import DownloadColumn, Progress

from paradecode.cli.console import err
from paradecode.models.catalogue import DEFAULT, find, pull


def offer_download(name: str | None) -> None:
    """Ask a person at a terminal whether to download a model of the catalogue that is missing."""
    entry = find(DEFAULT if name is None else name)
    asks = sys.stdin is not None and sys.stdin.isatty() and err.is_terminal
    if not asks or entry is None or entry.present or entry.package is None:
        return
    question = f"{entry.name} is not on this machine. Download it ({entry.size / 1e6:.0f} MB)?"
    if typer.confirm(question, default=True, err=True):
        downloaded(entry.name)


def downloaded(name: str) -> Path:
    """The file of a model, downloaded under a bar and checked; see :func:`pull`."""
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err) as progress:
        task = progress.add_task(name, total=None)
        return pull(name, lambda done, total: progress.update(task, completed=done, total=total))
