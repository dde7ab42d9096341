"""What the commands share that fine-tune a copy of a model: a run that can be stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paradecode.cli.train_steps import ready, tell, until_stopped
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.models.checkpoint import Checkpoint
    from paradecode.training.batched import BatchedModel
    from paradecode.training.unmasking.fine_tune import FineTuning, Run

MODEL, TEXTS = "model", "texts.samples"
Made = TypeVar("Made")
Settings = TypeVar("Settings")


def ready_folder(output: Path, samples: Path | None) -> None:
    """Refuse now what would otherwise fail after minutes of work."""
    ready(output.parent / "file", samples)
    from paradecode.training.running import CHECKPOINT

    begun = (output / TEXTS).exists() or (output / CHECKPOINT).exists()
    if output.exists() and not (begun or (output.is_dir() and not any(output.iterdir()))):
        fix = "name a new folder, or that of a run that was stopped"
        raise InvalidInput("OUTPUT", str(output), fix)


def run_folder(checkpoint: Checkpoint, output: Path, samples: Path | None) -> Path:
    """Make the folder of a run, and say where its texts are kept.

    Raises:
        InvalidInput: if the model is not a folder that can be copied.
    """
    from paradecode.training.unmasking.folder import source_of

    source_of(checkpoint)
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput("OUTPUT", str(output), f"name a folder ({error})") from None
    return samples or output / TEXTS


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
    """Train what is left to train, write OUTPUT/MODEL, and say how good it is."""
    from paradecode.training.running import CHECKPOINT
    from paradecode.training.unmasking.folder import save_folder

    def run(training: FineTuning) -> None:
        if (output / CHECKPOINT).exists():
            training.resume(output / CHECKPOINT)
        until_stopped("training", training, output)

    report = fit(model, made, settings, run)
    save_folder(checkpoint, model.parameters, output / MODEL)
    tell(output / MODEL, f"--model {output / MODEL} --decoder {decoder}", report, as_json)
