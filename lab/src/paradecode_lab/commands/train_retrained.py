"""`paradecode train lud`, `train first` and so on: retrain models for other decoding methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paradecode.cli.console import out
from paradecode.cli.options import grouped, option
from paradecode.cli.progress import watched
from paradecode.core.errors import InvalidInput
from paradecode_lab.commands.train_steps import RunFolder, device_of, need_torch, until_stopped

if TYPE_CHECKING:
    from paradecode_lab.training.retraining.run import Objective


@dataclass(frozen=True)
class RetrainingOptions:
    """Options of the texts to learn from, and of the length of the training."""

    model: str = option(
        "paradecode/tiny-autoregressive", "Catalogue name, .gguf file, or folder.", "--model -m"
    )
    texts: Path | None = option(None, "JSONL of {prompt, answer}; by default tasks are used.")
    tasks: str = option("simple", "Set of tasks: simple or graded.")
    instances: int = option(20_000, "Number of instances of the tasks.", min=8, max=10**7)
    length: int = option(256, "Most tokens of a text with its prompt.", min=4, max=1 << 16)
    steps: int = option(600, "Number of optimiser steps.", min=1, max=10**6)
    batch: int = option(32, "Number of texts in a step.", min=1, max=4096)
    rate: float = option(5e-4, "Learning rate.", min=1e-8, max=0.1)
    seed: int = option(0, "Seed of the texts and the weights.", min=0, max=2**31)
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    threads: int | None = option(None, "Number of CPU threads.", min=1, max=256)


GRADED = RetrainingOptions(model="paradecode/graded-diffusion", tasks="graded")
DRAFTED_FOR = RetrainingOptions(
    model="paradecode/graded-autoregressive", tasks="graded", steps=4000, rate=1e-3
)


@grouped
def lud(
    output: RunFolder,
    learning: RetrainingOptions,
    placeholders: int = option(4, "Most tokens of a unit behind its first.", min=1, max=16),
    confident: float = option(0.9, "Least probability of a sure token.", min=0.01, max=1),
) -> None:
    """Train LUD, a copy of a model that commits several sure tokens at once. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.lud import LexicalUnitObjective

    objective = partial(LexicalUnitObjective, placeholders=placeholders, confident=confident)
    use = f"--model {output / 'model'} --decoder 'lud(placeholders={placeholders})'"
    _train("lexical units", output, learning, objective, use)


@grouped
def wedlm(
    output: RunFolder,
    learning: RetrainingOptions,
    block: int = option(32, "Number of positions of a block.", min=1, max=4096),
    ends: int = option(8, "Number of end-of-text tokens at the end of an answer.", min=1, max=4096),
    weight: float = option(1.0, "Weight of the next-token loss.", min=0, max=1e6),
) -> None:
    """Train WeDLM, a copy of a causal model that fills masks in any order. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.wedlm import WedlmObjective

    objective = partial(WedlmObjective, block=block, ends=ends, weight=weight)
    use = f"--model {output / 'model'} --decoder wedlm"
    _train("masks", output, learning, objective, use)


@grouped
def assd(
    output: RunFolder,
    learning: RetrainingOptions = GRADED,
    placed: float = option(0.15, "Largest share of an answer that is given.", min=0, max=1),
    drafts: int = option(5, "Masks that are drafted together; 1: no drafts.", min=1, max=64),
) -> None:
    """Train ASSD, a copy of a diffusion model that computes a joint density. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.any_subset import AnySubsetObjective

    objective = partial(AnySubsetObjective, placed=placed, drafts=drafts)
    use = f"--model {output / 'model'} --decoder 'assd(tokens={drafts})'"
    _train("density", output, learning, objective, use)


@grouped
def deer(
    output: RunFolder,
    learning: RetrainingOptions = DRAFTED_FOR,
    layers: int = option(2, "The model's first layers that form the drafter.", min=1, max=1024),
    refined: float = option(0.5, "Share of the steps that belong to stage II.", min=0, max=1),
    reach: int = option(16, "Use at most this many masks in stage II.", min=1, max=4096),
    base: float = option(1.01, "Weight of a mask over that of the next mask.", min=1, max=2),
    weight: float = option(1.0, "Weight of the next-token loss; 0: paper.", min=0, max=1e6),
) -> None:
    """Train DEER, a small diffusion model that drafts for a causal model. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.deer import DeerObjective

    objective = partial(
        DeerObjective, layers=layers, refined=refined, reach=reach, base=base, weight=weight
    )
    use = f"--model {learning.model} --draft-model {output / 'model'} --decoder deer"
    _train("drafter", output, learning, objective, use, _answers)


@grouped
def first(
    output: RunFolder,
    learning: RetrainingOptions,
    rank: int = option(16, "Rank of the LoRA.", min=1, max=1024),
    price: float = option(0.01, "Cost of a layer that runs, in nats a token.", min=0, max=100),
) -> None:
    """Train FiRST: routers choose layers by the prompt, and a LoRA makes up for the others."""
    need_torch()
    from paradecode_lab.training.retraining.first import FirstObjective

    objective = partial(FirstObjective, rank=rank, price=price, seed=learning.seed)
    use = f"--model {output / 'model'} --decoder \"first(routers='{output}/routers.safetensors')\""
    _train("routers", output, learning, objective, use)


@grouped
def nested(
    output: RunFolder,
    learning: RetrainingOptions,
    exits: str = option("", "Exits after layers, as '6 9 12'; default: half, three quarters, all."),
    drawn: int = option(0, "Exits drawn for a step (SortedNet); 0: all (SoFT).", min=0, max=64),
) -> None:
    """Train a model whose first layers are models as well, for `s2d`. Ctrl-C saves."""
    from paradecode.methods.draft.drafters.draft_model import read_exits

    try:
        chosen = read_exits(exits)
    except ValueError as error:
        raise InvalidInput("--exits", exits, str(error)) from None
    need_torch()
    from paradecode_lab.training.retraining.nested import NestedObjective

    objective = partial(NestedObjective, exits=chosen, drawn=drawn)
    given = f"(exits='{exits}')" if chosen else ""
    use = f'--draft-model {output / "model"} --decoder "s2d{given}"'
    _train("nested exits", output, learning, objective, use)


@grouped
def lora_drop(
    output: RunFolder,
    learning: RetrainingOptions,
    rank: int = option(16, "Rank of each LoRA.", min=1, max=1024),
    share: float = option(0.5, "Share of the layers that most tokens do not run.", min=0, max=1),
    window: int = option(3, "Tokens between two tokens that run all layers.", min=1, max=1024),
) -> None:
    """Train LoRAs that replace layers for most tokens, for `lora-drop`. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.lora_drop import LoraDropObjective

    objective = partial(
        LoraDropObjective, rank=rank, share=share, window=window, seed=learning.seed
    )
    setting = f"adapters='{output}/adapters.safetensors',window={window}"
    use = f'--model {learning.model} --decoder "lora-drop({setting})"'
    _train("dropped layers", output, learning, objective, use)


@grouped
def hamburger(
    output: RunFolder,
    learning: RetrainingOptions,
    group: int = option(4, "Let a group have at most this many tokens.", min=2, max=64),
    blocks: int = option(2, "Number of layers of the small decoder.", min=1, max=64),
    low: float = option(0.05, "Entropy in nats below which a token joins a group.", min=0, max=100),
) -> None:
    """Train HAMburger, a copy of a model that reads and writes groups of tokens. Ctrl-C saves."""
    need_torch()
    from paradecode_lab.training.retraining.hamburger import HamburgerObjective

    objective = partial(HamburgerObjective, most=group, blocks=blocks, low=low, seed=learning.seed)
    use = f"--model {output / 'model'} --decoder \"hamburger(parts='{output}/parts.safetensors')\""
    _train("token groups", output, learning, objective, use)


def _train(
    title: str,
    output: Path,
    learning: RetrainingOptions,
    objective: Callable[..., Objective],
    use: str,
    texts_of: Callable[[Path, RetrainingOptions], Path] | None = None,
) -> None:
    """Train until all steps are done or the run is stopped, and print how to use the result.

    Args:
        title: title of the progress bar.
        objective: called with the model and a device.
        use: the printed options that use the result.
        texts_of: writes a file of texts if the user gives none, and returns its path; None takes
            `_tasks`.
    """
    where = device_of(learning.device)
    import torch

    from paradecode.models.catalogue import open_model
    from paradecode_lab.measure.tasks.tasks import tasks_named
    from paradecode_lab.training.adaptation.texts import read_texts
    from paradecode_lab.training.retraining.run import Retraining, RetrainingPlan
    from paradecode_lab.training.retraining.texts import MODEL
    from paradecode_lab.training.running import CHECKPOINT

    tasks_named(learning.tasks)  # Refuse an unknown set before a model is loaded.
    if learning.threads is not None:
        torch.set_num_threads(learning.threads)
    base = open_model(learning.model)
    if Path(base.source).resolve() == (output / MODEL).resolve():
        raise InvalidInput("OUTPUT", str(output), "the model is in it: name a new folder")
    made = objective(base, device=where)
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = learning.texts or (texts_of or _tasks)(output, learning)
    except OSError as error:
        raise InvalidInput("OUTPUT", str(output), f"name a folder ({error})") from None
    texts = read_texts(file, base, 1, min(learning.length, base.config.context_length))
    known = asdict(learning)
    plan = RetrainingPlan(**{name: known[name] for name in ("steps", "batch", "rate", "seed")})
    trainer = Retraining(plan, made, texts)
    if (output / CHECKPOINT).exists():
        trainer.resume(output / CHECKPOINT)
    until_stopped(title, trainer, output)
    out.print(use, soft_wrap=True, highlight=False)


def _tasks(output: Path, learning: RetrainingOptions) -> Path:
    """Write a file of tasks with right answers, and return its path."""
    from paradecode_lab.measure.tasks.tasks import tasks_named
    from paradecode_lab.training.retraining.texts import write_tasks

    file = output / f"{learning.tasks}-{learning.seed}-{learning.instances}.jsonl"
    write_tasks(file, tasks_named(learning.tasks), learning.instances, learning.seed)
    return file


def _answers(output: Path, learning: RetrainingOptions) -> Path:
    """Write a file of tasks with the model's own answers, and return its path."""
    from paradecode.llm import LLM
    from paradecode_lab.measure.tasks.tasks import tasks_named
    from paradecode_lab.training.retraining.answers import write_answers

    count, length, seed = learning.instances, learning.length, learning.seed
    file = output / f"answers-{learning.tasks}-{seed}-{count}-{length}.jsonl"
    with LLM(learning.model, threads=learning.threads) as llm:
        write = partial(write_answers, file, llm, tasks_named(learning.tasks), count, length, seed)
        watched("answers", write)
    return file
