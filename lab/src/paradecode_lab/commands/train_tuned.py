"""Shared by the commands that fine-tune a copy of a model: a run that can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from paradecode.cli.options import Loading, option
from paradecode.core.errors import InvalidInput
from paradecode_lab.commands.train_steps import S, Samples, logged, ready, tell, until_stopped

if TYPE_CHECKING:
    from paradecode.models.checkpoint import Checkpoint
    from paradecode_lab.training.batched import BatchedModel
    from paradecode_lab.training.unmasking.fine_tune import FineTuning, Run
    from paradecode_lab.training.unmasking.workload import CanvasWorkload

MODEL, TEXTS = "model", "texts.samples"
OptimiserSteps = Annotated[int, typer.Option(help="Number of optimiser steps.", min=1, max=10**6)]
Batch = Annotated[int, typer.Option(help="Number of texts in a step.", min=1, max=4096)]
Made = TypeVar("Made")
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Texts:
    """Options of the texts to learn from."""

    prompts: Path | None = option(None, "JSONL of {id, group, turns}; default: own tasks.")
    tasks: str = option("simple", "Set of tasks: simple or graded.")
    limit: int = option(0, "Most prompts; 0: 40 of each task, or a whole file.", min=0)
    max_tokens: int = option(64, "Generate at most this many tokens behind a prompt.", min=1)
    seed: int = option(0, "Seed of the prompts, of the held-out part and of the weights.", min=0)
    samples: Samples = None

    def workload(self) -> CanvasWorkload:
        from paradecode_lab.training.unmasking.workload import CanvasWorkload

        workload = CanvasWorkload(self.prompts, self.tasks, self.limit, self.max_tokens, self.seed)
        workload.params(), workload.texts()  # Refuse a bad setting before a model is loaded.
        return workload


@dataclass(frozen=True)
class Tuning:
    """Options of a training of all weights."""

    rate: float = option(1e-4, "Learning rate.", min=1e-8, max=0.1)
    steps: OptimiserSteps = 400
    batch: Batch = 16


def ready_folder(output: Path, samples: Path | None) -> None:
    """Check before minutes of work that a run can use this folder and this file of samples.

    Raises:
        InvalidInput: if the folder holds something else, or the samples cannot be written.
    """
    ready(output.parent / "file", samples)
    from paradecode_lab.training.running import CHECKPOINT

    begun = (output / TEXTS).exists() or (output / CHECKPOINT).exists()
    if output.exists() and not (begun or (output.is_dir() and not any(output.iterdir()))):
        fix = "name a new folder, or that of a run that was stopped"
        raise InvalidInput("OUTPUT", str(output), fix)


def run_folder(checkpoint: Checkpoint, output: Path, samples: Path | None) -> Path:
    """Create the folder of a run, and return the path of its texts.

    Raises:
        InvalidInput: if the model cannot be written as a folder.
    """
    from paradecode_lab.training.unmasking.folder import source_of

    source_of(checkpoint)
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput("OUTPUT", str(output), f"name a folder ({error})") from None
    return samples or output / TEXTS


def model_and_texts(
    loading: Loading,
    texts: Texts,
    kind: type[S],
    record: Callable[..., S],
    named: str,
    *facts: int,
    folder: Path | None = None,
) -> tuple[Checkpoint, BatchedModel, S]:
    """Return the model, the same model in PyTorch, and the texts that it wrote in the engine.

    Args:
        kind: class of the texts.
        record: called with the :class:`LLM`, the workload, ``facts`` and a progress function.
        named: name of the kind of texts. Texts in a file must have the same name, workload and
            ``facts``.
        folder: folder of the run; texts without a file of their own are kept there.
    """
    import torch

    from paradecode.models.catalogue import open_model
    from paradecode_lab.training.batched import BatchedModel

    workload = texts.workload()
    checkpoint = open_model(loading.model)
    kept = texts.samples
    if folder is not None:
        kept = run_folder(checkpoint, folder, kept)
    with loading.open() as llm:
        made = logged(
            kind, kept, workload.origin(llm, named, *facts),
            partial(record, llm, workload, *facts), vocab_size=llm.config.vocab_size,
        )  # fmt: skip
    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    device = torch.device(loading.device)
    return checkpoint, BatchedModel(checkpoint.config, checkpoint.weights, device), made


def fine_tuned(
    output: Path,
    checkpoint: Checkpoint,
    model: BatchedModel,
    made: Made,
    settings: Settings,
    fit: Callable[[BatchedModel, Made, Settings, Run], object],
    decoder: str,
    as_json: bool,
) -> None:
    """Do the remaining training, write the model to OUTPUT/MODEL, and print how good it is."""
    from paradecode_lab.training.running import CHECKPOINT
    from paradecode_lab.training.unmasking.folder import save_folder

    def run(training: FineTuning) -> None:
        if (output / CHECKPOINT).exists():
            training.resume(output / CHECKPOINT)
        until_stopped("training", training, output)

    report = fit(model, made, settings, run)
    save_folder(checkpoint, model.parameters, output / MODEL)
    tell(output / MODEL, f"--model {output / MODEL} --decoder {decoder}", report, as_json)
