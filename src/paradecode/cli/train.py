"""`paradecode train`: the small trained parts of methods. One command a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.progress import Progress
from rich.table import Table

from paradecode.cli.console import err, out, print_json
from paradecode.cli.options import Json, Loading, grouped
from paradecode.core.errors import InvalidInput
from paradecode.decoders.registry import parse

if TYPE_CHECKING:
    from paradecode.bench.prompts import Item
    from paradecode.training.acceptance.workload import Progress as Tick
    from paradecode.training.acceptance.workload import Workload

train_app = typer.Typer(help="Train the small parts that some methods need.", no_args_is_help=True)
T = TypeVar("T")

CHAINS = "layer-skip(skip=0.1,width=1)"
TREES = "layer-skip(skip=0.1,width=4)"
"""What is recorded when nothing is said: needs no second model."""

DraftModel = Annotated[str | None, typer.Option(help="The small model of methods that need one.")]


@dataclass(frozen=True)
class Learning:
    """What is decoded to learn from, and how long it is learnt."""

    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns}; default: the package's.")
    ] = None
    limit: Annotated[int, typer.Option(help="Only so many conversations; 0 takes all.", min=0)] = 0
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 128
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of the answers, the split and the weights.")] = 0
    samples: Annotated[
        Path | None, typer.Option(help="Keep the logged samples here; reused if they are there.")
    ] = None
    epochs: Annotated[int, typer.Option(help="Passes over the samples.", min=1, max=10000)] = 20

    def workload(self) -> Workload:
        from paradecode.training.acceptance.workload import Workload

        workload = Workload(self.prompts, self.limit, self.max_tokens, self.temperature, self.seed)
        workload.params()  # Refuse a bad setting before a model is loaded.
        return workload


@train_app.command(name="acceptance-head")
@grouped
def acceptance_head(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    loading: Loading,
    learning: Learning,
    decoder: Annotated[
        str, typer.Option("--decoder", "-d", help="The method whose drafts are recorded.")
    ] = CHAINS,
    draft_model: DraftModel = None,
    blocks: Annotated[int, typer.Option(help="Residual blocks.", min=0, max=16)] = 3,
    rejection_weight: Annotated[
        float, typer.Option(help="What a rejected token counts in the loss.", min=0.01, max=1000)
    ] = 6.0,
    as_json: Json = False,
) -> None:
    """SpecDec++'s head: will a draft token be accepted? For `acceptance_head=FILE`."""
    ready(output, learning.samples)
    from paradecode.training.acceptance.head_fit import HeadSettings, fit_head
    from paradecode.training.acceptance.head_samples import (
        load_head_samples,
        record_head_samples,
        save_head_samples,
    )

    spec, workload = parse(decoder), learning.workload()
    with loading.open(decoder=spec, draft_model=draft_model) as llm:
        digest = workload.digest(llm, spec)
        samples = _samples(
            learning.samples,
            lambda path: load_head_samples(path, digest),
            lambda path, made: save_head_samples(path, made, digest),
            lambda items, tick: record_head_samples(llm, items, spec, workload.params(), tick),
            lambda: workload.items(llm),
        )
    settings = HeadSettings(blocks, rejection_weight, learning.epochs, seed=learning.seed)
    head, report = watched("training", lambda tick: fit_head(samples, settings, tick))
    head.save(output)
    _tell(output, "acceptance_head", spec.method.name, report, as_json)


@train_app.command(name="tree-selector")
@grouped
def tree_selector(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    loading: Loading,
    learning: Learning,
    decoder: Annotated[
        str, typer.Option("--decoder", "-d", help="The method whose drafts are recorded.")
    ] = TREES,
    draft_model: DraftModel = None,
    as_json: Json = False,
) -> None:
    """The selector of delayed trees: which trunk, which branches? For `tree_selector=FILE`."""
    ready(output, learning.samples)
    from paradecode.training.acceptance.selector_fit import SelectorSettings, fit_selector
    from paradecode.training.acceptance.selector_samples import (
        load_selector_samples,
        record_selector_samples,
        save_selector_samples,
    )
    from paradecode.training.acceptance.workload import draft_size, drafting

    spec, workload = parse(decoder), learning.workload()
    count = draft_size(drafting(spec))
    with loading.open(decoder=spec, draft_model=draft_model) as llm:
        digest = workload.digest(llm, spec)
        samples = _samples(
            learning.samples,
            lambda path: load_selector_samples(path, digest, count),
            lambda path, made: save_selector_samples(path, made, digest),
            lambda items, tick: record_selector_samples(llm, items, spec, workload.params(), tick),
            lambda: workload.items(llm),
        )
    settings = SelectorSettings(epochs=learning.epochs, seed=learning.seed)
    selector, report = watched("training", lambda tick: fit_selector(samples, settings, tick))
    selector.save(output)
    _tell(output, "tree_selector", spec.method.name, report, as_json)


def _samples(
    path: Path | None,
    load: Callable[[Path], T],
    save: Callable[[Path, T], None],
    record: Callable[[list[Item], Tick], T],
    items: Callable[[], list[Item]],
) -> T:
    """The samples of a file, or those of a run, which the file then gets."""
    if path is not None and path.exists():
        return load(path)
    todo = items()
    made = watched("decoding", lambda tick: record(todo, tick))
    if path is not None:
        save(path, made)
    return made


def watched(title: str, work: Callable[[Tick], T]) -> T:
    with Progress(console=err) as progress:
        task = progress.add_task(title, total=None)
        return work(lambda done, total: progress.update(task, completed=done, total=total))


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


def _tell(output: Path, setting: str, method: str, report: Any, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(output), **asdict(report)})
        return
    rows = {k: vars(v) for k, v in vars(report).items() if is_dataclass(v)}
    facts = {k: v for k, v in vars(report).items() if k not in rows}
    table = Table("held out", *next(iter(rows.values())))
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in values.values()))
    out.print(table)
    out.print(", ".join(f"{k} {_shown(v)}" for k, v in facts.items()), highlight=False)
    budget = "specdec++" if setting == "acceptance_head" else "delayed"
    out.print(f"{method}(budget='{budget}',{setting}='{output}')", soft_wrap=True, highlight=False)


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
