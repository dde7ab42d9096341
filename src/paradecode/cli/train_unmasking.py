"""`paradecode train unmask-filter`, `joint-sampler`, `refine` and `r2`: for canvas methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table

from paradecode.cli.console import out, print_json
from paradecode.cli.options import Json, Loading, grouped
from paradecode.cli.train import ready, watched
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.llm import LLM
    from paradecode.training.unmasking.batched import BatchedModel
    from paradecode.training.unmasking.trajectories import Trajectories
    from paradecode.training.unmasking.workload import Progress as Tick
    from paradecode.training.unmasking.workload import Workload

T = TypeVar("T")
Block = Annotated[int, typer.Option(help="Positions of a block.", min=1, max=1024)]
OptimiserSteps = Annotated[int, typer.Option(help="Optimiser steps.", min=1, max=10**6)]
Batch = Annotated[int, typer.Option(help="Texts a step.", min=1, max=4096)]


@dataclass(frozen=True)
class Texts:
    """What is decoded to learn from."""

    prompts: Annotated[
        Path | None, typer.Option(help="JSONL of {id, group, turns}; default: parallel tasks.")
    ] = None
    limit: Annotated[int, typer.Option(help="So many prompts; 0: 40 a task, or all.", min=0)] = 0
    max_tokens: Annotated[int, typer.Option(help="Masks behind a prompt.", min=1)] = 64
    seed: Annotated[int, typer.Option(help="Of prompts, split and weights.", min=0)] = 0
    samples: Annotated[
        Path | None, typer.Option(help="Keep the logged samples here; reused if they are there.")
    ] = None

    def workload(self) -> Workload:
        from paradecode.training.unmasking.workload import Workload

        workload = Workload(self.prompts, self.limit, self.max_tokens, self.seed)
        workload.params(), workload.texts()  # Refuse a bad setting before a model is loaded.
        return workload


TINY, DEFAULT = Loading(model="paradecode/tiny-diffusion"), Texts()


@grouped
def unmask_filter(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    epochs: Annotated[int, typer.Option(help="Passes over the samples.", min=1)] = 4000,
    as_json: Json = False,
) -> None:
    """Learn2PD's filter: is a proposal final? For `learn2pd(filter=FILE)`."""
    ready(output, texts.samples)
    from paradecode.training.unmasking.filter_fit import FilterSettings, fit_filter
    from paradecode.training.unmasking.filter_samples import (
        load_filter_samples,
        record_filter_samples,
        save_filter_samples,
    )

    workload = texts.workload()
    with loading.open() as llm:
        digest = workload.digest(llm, "filter", block)
        samples = _logged(
            texts.samples,
            lambda path: load_filter_samples(path, digest, block),
            lambda path, made: save_filter_samples(path, made, digest),
            lambda tick: record_filter_samples(llm, workload, block, tick),
        )
    settings = FilterSettings(epochs, seed=texts.seed)
    made, report = watched("training", lambda tick: fit_filter(samples, settings, tick))
    made.save(output)
    _tell(output, f"learn2pd(filter='{output}')", report, as_json)


@grouped
def joint_sampler(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    width: Annotated[int, typer.Option(help="Of the layer; 0: the model's, to 256.", min=0)] = 0,
    depth: Annotated[int, typer.Option(help="Most tokens it is told.", min=1, max=16)] = 3,
    steps: OptimiserSteps = 600,
    batch: Batch = 16,
    as_json: Json = False,
) -> None:
    """ADJUST's layer: several tokens a forward, each told of the others. For `joint-sampler`."""
    ready(output, texts.samples)
    from paradecode.training.unmasking.joint_fit import JointSettings, fit_joint

    workload = texts.workload()
    named, record = ("trajectories", block), _static(workload, block)
    model, made, _ = _model_and_texts(loading, texts, workload, named, record)
    settings = JointSettings(width, depth, steps, batch, seed=texts.seed)
    layer, report = watched("training", lambda tick: fit_joint(model, made, settings, tick))
    layer.save(output)
    _tell(output, f"joint-sampler(layer='{output}')", report, as_json)


@grouped
def refine(
    output: Annotated[Path, typer.Argument(help="The folder to make.")],
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    corrupted: Annotated[
        float, typer.Option(help="Visible tokens that are made wrong.", min=0.001, max=0.9)
    ] = 0.05,
    own: Annotated[
        float, typer.Option(help="Of these, the model's own mistakes.", min=0, max=1)
    ] = 0.5,
    rate: Annotated[float, typer.Option(help="Learning rate.", min=1e-8, max=0.1)] = 1e-4,
    steps: OptimiserSteps = 400,
    batch: Batch = 16,
    as_json: Json = False,
) -> None:
    """ReDiff: a copy of the model that corrects what it sees. For `refine`."""
    ready(output.parent / "file", texts.samples)
    if output.exists():
        raise InvalidInput("OUTPUT", str(output), "name a folder that is not there yet")
    from paradecode.training.unmasking.corrections import RefineSettings, fit_corrections
    from paradecode.training.unmasking.folder import save_folder, source_of

    workload = texts.workload()
    named, record = ("trajectories", block), _static(workload, block)
    model, made, checkpoint = _model_and_texts(loading, texts, workload, named, record, source_of)
    settings = RefineSettings(corrupted, own, steps, batch, rate, texts.seed)
    report = watched("training", lambda tick: fit_corrections(model, made, settings, tick))
    save_folder(checkpoint, model.parameters, output)
    _tell(output, f"--model {output} --decoder refine", report, as_json)


@grouped
def r2(
    output: Annotated[Path, typer.Argument(help="The folder to make.")],
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    draws: Annotated[int, typer.Option(help="Texts a prompt to choose from.", min=1, max=64)] = 4,
    rate: Annotated[float, typer.Option(help="Learning rate.", min=1e-8, max=0.1)] = 1e-4,
    steps: OptimiserSteps = 400,
    batch: Batch = 8,
    as_json: Json = False,
) -> None:
    """R2-dLLM: a copy of the model that is surer of what it decodes quickly. For `r2`."""
    ready(output.parent / "file", texts.samples)
    if output.exists():
        raise InvalidInput("OUTPUT", str(output), "name a folder that is not there yet")
    from paradecode.training.unmasking.folder import save_folder, source_of
    from paradecode.training.unmasking.short_decodings import record_short_decodings
    from paradecode.training.unmasking.short_fit import ShortSettings, fit_short

    def record(llm: LLM, tick: Tick) -> Trajectories:
        return record_short_decodings(llm, workload, block, draws, tick)

    workload = texts.workload()
    named = ("short decodings", block, draws)
    model, made, checkpoint = _model_and_texts(loading, texts, workload, named, record, source_of)
    settings = ShortSettings(block, steps, batch, rate, texts.seed)
    report = watched("training", lambda tick: fit_short(model, made, settings, tick))
    save_folder(checkpoint, model.parameters, output)
    _tell(output, f"--model {output} --decoder r2", report, as_json)


def _static(workload: Workload, block: int) -> Callable[[LLM, Tick], Trajectories]:
    """Logs the texts of static decoding, one token a forward."""
    from paradecode.training.unmasking.trajectories import record_trajectories

    return lambda llm, tick: record_trajectories(llm, workload, block, tick)


def _model_and_texts(
    loading: Loading,
    texts: Texts,
    workload: Workload,
    named: tuple[object, ...],
    record: Callable[[LLM, Tick], Trajectories],
    check: Callable[[Any], object] = lambda checkpoint: None,
) -> tuple[BatchedModel, Trajectories, Any]:
    """The model in PyTorch, what it wrote in the engine, and its checkpoint.

    Args:
        named: what the texts depend on beside the workload.
    """
    import torch

    from paradecode.models.catalogue import open_model
    from paradecode.training.unmasking.batched import BatchedModel
    from paradecode.training.unmasking.trajectories import (
        load_trajectories,
        save_trajectories,
    )

    checkpoint = open_model(loading.model)
    check(checkpoint)
    with loading.open() as llm:
        digest = workload.digest(llm, *named)
        made = _logged(
            texts.samples,
            lambda path: load_trajectories(path, digest, llm.config.vocab_size),
            lambda path, found: save_trajectories(path, found, digest),
            lambda tick: record(llm, tick),
        )
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    device = torch.device(loading.device)
    return BatchedModel(checkpoint.config, checkpoint.weights, device), made, checkpoint


def _logged(
    path: Path | None,
    load: Callable[[Path], T],
    save: Callable[[Path, T], None],
    record: Callable[[Tick], T],
) -> T:
    """The samples of a file, or those of a run, which the file then gets."""
    if path is not None and path.exists():
        return load(path)
    made = watched("decoding", record)
    if path is not None:
        save(path, made)
    return made


def _tell(output: Path, use: str, report: Any, as_json: bool) -> None:
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
