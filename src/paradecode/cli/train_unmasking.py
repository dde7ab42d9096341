"""`paradecode train unmask-filter` and `joint-sampler`, `refine`, `r2` and `dparallel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paradecode.cli.options import Json, Loading, grouped, option
from paradecode.cli.train_steps import Output, RunFolder, Samples, logged, ready, trained
from paradecode.cli.train_tuned import fine_tuned, ready_folder, run_folder

if TYPE_CHECKING:
    from paradecode.models.checkpoint import Checkpoint
    from paradecode.training.batched import BatchedModel
    from paradecode.training.unmasking.trajectories import Trajectories
    from paradecode.training.unmasking.workload import CanvasWorkload

Block = Annotated[int, typer.Option(help="Positions of a block.", min=1, max=1024)]
OptimiserSteps = Annotated[int, typer.Option(help="Optimiser steps.", min=1, max=10**6)]
Batch = Annotated[int, typer.Option(help="Texts a step.", min=1, max=4096)]


@dataclass(frozen=True)
class Texts:
    """What is decoded to learn from."""

    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: parallel tasks.")
    limit: int = option(0, "So many prompts; 0: 40 a task, or all.", min=0)
    max_tokens: int = option(64, "Masks behind a prompt.", min=1)
    seed: int = option(0, "Of prompts, split and weights.", min=0)
    samples: Samples = None

    def workload(self) -> CanvasWorkload:
        from paradecode.training.unmasking.workload import CanvasWorkload

        workload = CanvasWorkload(self.prompts, self.limit, self.max_tokens, self.seed)
        workload.params(), workload.texts()  # Refuse a bad setting before a model is loaded.
        return workload


@dataclass(frozen=True)
class Tuning:
    """How all weights of a model are trained."""

    rate: float = option(1e-4, "Learning rate.", min=1e-8, max=0.1)
    steps: OptimiserSteps = 400
    batch: Batch = 16


TINY, DEFAULT = Loading(model="paradecode/tiny-diffusion"), Texts()
WHOLE, FEWER_TEXTS = Tuning(), Tuning(batch=8)


@grouped
def unmask_filter(
    output: Output,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    epochs: int = option(4000, "Passes over the samples.", min=1),
    as_json: Json = False,
) -> None:
    """Learn2PD's filter: is a proposal final? For `learn2pd(filter=FILE)`."""
    ready(output, texts.samples)
    from paradecode.training.unmasking.filter_fit import FilterSettings, fit_filter
    from paradecode.training.unmasking.filter_samples import FilterSamples, record_filter_samples

    workload = texts.workload()
    with loading.open() as llm:
        samples = logged(
            FilterSamples, texts.samples, workload.digest(llm, "filter", block),
            partial(record_filter_samples, llm, workload, block), B=block,
        )  # fmt: skip
    fit = partial(fit_filter, samples, FilterSettings(epochs, seed=texts.seed))
    trained(output, f"learn2pd(filter='{output}')", fit, as_json)


@grouped
def joint_sampler(
    output: Output,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    width: int = option(0, "Of the layer; 0: the model's, to 256.", min=0),
    depth: int = option(3, "Most tokens it is told.", min=1, max=16),
    steps: OptimiserSteps = 600,
    batch: Batch = 16,
    as_json: Json = False,
) -> None:
    """ADJUST's layer: several tokens a forward, each told of the others. For `joint-sampler`."""
    ready(output, texts.samples)
    from paradecode.training.unmasking.joint_fit import JointSettings, fit_joint
    from paradecode.training.unmasking.trajectories import record_trajectories

    settings = JointSettings(width=width, depth=depth, steps=steps, batch=batch, seed=texts.seed)
    _, model, made = _model_and_texts(loading, texts, record_trajectories, "trajectories", block)
    fit = partial(fit_joint, model, made, settings)
    trained(output, f"joint-sampler(layer='{output}')", fit, as_json)


@grouped
def refine(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    corrupted: float = option(0.05, "Visible tokens that are made wrong.", min=0.001, max=0.9),
    own: float = option(0.5, "Of these, the model's own mistakes.", min=0, max=1),
    tuning: Tuning = WHOLE,
    as_json: Json = False,
) -> None:
    """ReDiff: a copy of the model that corrects what it sees. For `refine`. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode.training.unmasking.corrections import RefineSettings, fit_corrections
    from paradecode.training.unmasking.trajectories import record_trajectories

    settings = RefineSettings(corrupted, own, **vars(tuning), seed=texts.seed)
    made = _model_and_texts(
        loading, texts, record_trajectories, "trajectories", block, folder=output
    )
    fine_tuned(output, *made, settings, fit_corrections, "refine", as_json)


@grouped
def r2(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    draws: int = option(4, "Texts a prompt to choose from.", min=1, max=64),
    tuning: Tuning = FEWER_TEXTS,
    as_json: Json = False,
) -> None:
    """R2-dLLM: a copy of the model that is surer of what it decodes quickly. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode.training.unmasking.block_masks import BlockSettings
    from paradecode.training.unmasking.short_decodings import record_short_decodings
    from paradecode.training.unmasking.short_fit import fit_short

    settings = BlockSettings(block=block, **vars(tuning), seed=texts.seed)
    made = _model_and_texts(
        loading, texts, record_short_decodings, "short decodings", block, draws, folder=output
    )
    fine_tuned(output, *made, settings, fit_short, "r2", as_json)


@grouped
def dparallel(
    output: RunFolder,
    loading: Loading = TINY,
    texts: Texts = DEFAULT,
    block: Block = 32,
    weight: float = option(2.0, "Of the entropy in the loss.", min=0, max=1000),
    tuning: Tuning = FEWER_TEXTS,
    as_json: Json = False,
) -> None:
    """dParallel: a copy of the model that is sure of many masks at once. Ctrl-C saves."""
    ready_folder(output, texts.samples)
    from paradecode.training.unmasking.certainty_fit import CertaintySettings, fit_certainty
    from paradecode.training.unmasking.trajectories import record_trajectories

    settings = CertaintySettings(weight=weight, block=block, **vars(tuning), seed=texts.seed)
    made = _model_and_texts(
        loading, texts, record_trajectories, "trajectories", block, folder=output
    )
    use = "'threshold(score=entropy,threshold=0.5)'"
    fine_tuned(output, *made, settings, fit_certainty, use, as_json)


def _model_and_texts(
    loading: Loading,
    texts: Texts,
    record: Callable[..., Trajectories],
    named: str,
    *facts: int,
    folder: Path | None = None,
) -> tuple[Checkpoint, BatchedModel, Trajectories]:
    """The model, the same in PyTorch, and what it wrote in the engine.

    Args:
        record: called with the engine's front, the workload, ``facts`` and what to tell.
        named: kind of the texts, which also depend on the workload and ``facts``.
        folder: of a run that writes another such model. The texts are kept there, if not elsewhere.
    """
    import torch

    from paradecode.models.catalogue import open_model
    from paradecode.training.batched import BatchedModel
    from paradecode.training.unmasking.trajectories import Trajectories

    workload = texts.workload()
    checkpoint = open_model(loading.model)
    kept = texts.samples
    if folder is not None:
        kept = run_folder(checkpoint, folder, kept)
    with loading.open() as llm:
        made = logged(
            Trajectories, kept, workload.digest(llm, named, *facts),
            partial(record, llm, workload, *facts), vocab_size=llm.config.vocab_size,
        )  # fmt: skip
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    device = torch.device(loading.device)
    return checkpoint, BatchedModel(checkpoint.config, checkpoint.weights, device), made
