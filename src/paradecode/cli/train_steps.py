"""What the commands of `paradecode train` that log samples and fit a part of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.progress import Progress
from rich.table import Table

from paradecode.cli.console import err, out, print_json
from paradecode.core.errors import InvalidInput

Output = Annotated[Path, typer.Argument(help="The file to write.")]
Samples = Annotated[
    Path | None, typer.Option(help="Keep the logged samples here; reused if they are there.")
]
Tick = Callable[[int, int], None]
"""Called with what is done and what there is to do."""
T = TypeVar("T")


class Part(Protocol):
    """What is trained and kept in a file."""

    def save(self, path: Path, /) -> None: ...


def ready(output: Path, samples: Path | None) -> None:
    """Refuse now what would otherwise fail after minutes of work."""
    writable("OUTPUT", output)
    if samples is not None:
        writable("--samples", samples)
    try:
        import torch  # noqa: F401
    except ImportError:
        fix = "install the extra: pip install 'paradecode[train]'"
        raise InvalidInput("training", "without PyTorch", fix) from None


def writable(field: str, path: Path) -> None:
    """Raise InvalidInput unless ``path`` can become a file."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InvalidInput(field, str(path), "name a file in a folder that is there")


def watched(title: str, work: Callable[[Tick], T]) -> T:
    with Progress(console=err) as progress:
        task = progress.add_task(title, total=None)
        return work(lambda done, total: progress.update(task, completed=done, total=total))


def logged(
    path: Path | None,
    digest: str,
    load: Callable[[Path, str], T],
    save: Callable[[Path, T, str], None],
    record: Callable[[Tick], T],
) -> T:
    """The samples of a file, or those of a run, which the file then gets."""
    if path is not None and path.exists():
        return load(path, digest)
    made = watched("decoding", record)
    if path is not None:
        save(path, made, digest)
    return made


def trained(output: Path, use: str, fit: Callable[[Tick], tuple[Part, Any]], as_json: bool) -> None:
    """Fit a part, write its file, and say how good it is."""
    part, report = watched("training", fit)
    part.save(output)
    tell(output, use, report, as_json)


def tell(output: Path, use: str, report: Any, as_json: bool) -> None:
    """Print a report, whose dataclasses are rows of a table, and how the output is used."""
    if as_json:
        print_json({"file": str(output), **asdict(report)})
        return
    rows = {name: vars(value) for name, value in vars(report).items() if is_dataclass(value)}
    table = Table("held out", *next(iter(rows.values())))
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in values.values()))
    out.print(table)
    facts = {name: value for name, value in vars(report).items() if name not in rows}
    shown = (f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    out.print(", ".join(shown), highlight=False)
    out.print(use, soft_wrap=True, highlight=False)
