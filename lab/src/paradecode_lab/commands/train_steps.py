"""Shared functions of the commands of `paradecode train`: they log samples and fit a part to
them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer
from rich.progress import TextColumn
from rich.table import Table

from paradecode.cli.console import err, out, print_json
from paradecode.cli.outputs import writable
from paradecode.cli.progress import STOPPED, Tick, open_progress, watched
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from paradecode_lab.training.running import Training
    from paradecode_lab.training.samples import Origin
    from paradecode_lab.training.samples import Samples as LoggedSamples

Output = Annotated[Path, typer.Argument(help="Write to this file.")]
Samples = Annotated[
    Path | None, typer.Option(help="File of the logged samples; an existing one is reused.")
]
RunFolder = Annotated[Path, typer.Argument(help="Folder; a run that stopped there continues.")]
S = TypeVar("S", bound="LoggedSamples")


class TrainedFile(Protocol):
    """A trained part that can be saved in a file."""

    def save(self, path: Path, /) -> None: ...


def ready(output: Path, samples: Path | None) -> None:
    """Check before minutes of work that the files can be written and that PyTorch is there.

    Raises:
        InvalidInput: if they cannot be written, or PyTorch is missing.
    """
    writable("OUTPUT", output)
    if samples is not None:
        writable("--samples", samples)
    need_torch()


def need_torch() -> None:
    """Raise InvalidInput if PyTorch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        fix = "install the extra: pip install -e 'lab[train]' in the checkout"
        raise InvalidInput("training", "without PyTorch", fix) from None


def device_of(name: str) -> torch.device:
    """Return the torch device with this name; raise InvalidInput if this machine has none."""
    need_torch()
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidInput("device", name, "use cpu, cuda or cuda:N") from None
    cuda = device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    if not cuda and device.type != "cpu":
        raise InvalidInput("device", name, "it is not on this machine; use cpu")
    return device


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second signal ends the process as usual."""
    stop = threading.Event()
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def as_usual() -> None:
        for each, handler in usual.items():
            signal.signal(each, handler)

    def ask(number: int, frame: object) -> None:
        stop.set()
        as_usual()

    for number in usual:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        as_usual()


def until_stopped(
    title: str,
    training: Training,
    folder: Path,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    every: int = 500,
    note: str = "held out {:.0%} exact",
) -> None:
    """Run a training under a bar that shows its loss; exit with status 130 if it was stopped.

    Args:
        title: title of the bar.
        folder, evaluate, every: arguments of :meth:`Training.run`.
        note: a format string that shows the mean of the results of ``evaluate``.
    """
    loss_and_note = TextColumn("{task.fields[loss]}  {task.fields[note]}")
    with stop_on_signals() as stop, open_progress(loss_and_note) as progress:
        bar = progress.add_task(
            title, total=training.steps, completed=training.step, loss="", note=""
        )

        def tell(step: int, loss: float, exact: Mapping[str, float] | None) -> None:
            progress.update(bar, completed=step, loss=f"loss {loss:.3f}")
            if exact:
                share = sum(exact.values()) / len(exact)
                progress.update(bar, note=note.format(share))

        done = training.run(folder, stop.is_set, tell, evaluate, every)
    if not done:
        err.print(f"stopped at step {training.step}; the same command goes on", highlight=False)
        raise typer.Exit(STOPPED)


def logged(
    kind: type[S], path: Path | None, origin: Origin, record: Callable[[Tick], S], **known: Any
) -> S:
    """Return samples from a file, or record them and write them to that file.

    Args:
        kind: class of the samples.
        path: the file; None keeps the samples in memory only.
        origin: the origin that samples in the file must have.
        record: records samples; called with a progress function.
        known: facts that samples in the file must have.
    """
    if path is not None and path.exists():
        return kind.load(path, origin, **known)
    made = watched("decoding", record)
    if path is not None:
        made.save(path, origin)
    return made


def trained(
    output: Path, use: str, fit: Callable[[Tick], tuple[TrainedFile, Any]], as_json: bool
) -> None:
    """Fit a part, write it to a file, and print how good it is."""
    part, report = watched("training", fit)
    part.save(output)
    tell(output, use, report, as_json)


def tell(output: Path, use: str, report: Any, as_json: bool) -> None:
    """Print a report and how to use the output.

    Each dataclass in the report becomes a row of a table; its other fields are printed below.
    """
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
