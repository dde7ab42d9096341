"""`paradecode train adapt`: make a block diffusion model from an autoregressive one, as a LoRA."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from paradecode.cli.console import out
from paradecode.cli.options import grouped, option
from paradecode.cli.outputs import make_folder
from paradecode.cli.progress import watched
from paradecode.core.errors import InvalidInput
from paradecode_lab.commands.train_steps import RunFolder, device_of, until_stopped

if TYPE_CHECKING:
    from paradecode_lab.measure.statistics import Interval
    from paradecode_lab.training.adaptation.evaluation import Likelihood
    from paradecode_lab.training.adaptation.training import AdapterTraining

REPORT = "report.json"
FEWEST = 8


@dataclass(frozen=True)
class Material:
    """Options of the texts to learn from."""

    texts: Path | None = option(None, "JSONL of {prompt, answer}; default: the model writes.")
    own: int = option(100_000, "Conversations that the model writes.", min=FEWEST, max=10**7)
    max_tokens: int = option(256, "Most tokens of an answer that the model writes.", min=1)
    length: int = option(512, "Most tokens of a text with its prompt.", min=2, max=1 << 16)
    held_out: int = option(256, "Texts that are held out for evaluation.", min=1)


@dataclass(frozen=True)
class AdaptOptions:
    """Options of the training."""

    rank: int = option(32, "Rank of the LoRA.", min=1, max=1024)
    block: int = option(16, "Number of positions of a block, a power of 2.", min=1, max=4096)
    shift: bool = option(True, "Let logits predict the next position, as before the training.")
    steps: int = option(6000, "Number of optimiser steps.", min=1, max=10**6)
    batch: int = option(64, "Number of texts in a step.", min=1, max=4096)
    together: int = option(8, "Texts in a forward; fewer need less memory.", min=1, max=4096)
    rate: float = option(2e-4, "Learning rate.", min=1e-8, max=0.1)
    distil: float = option(0.0, "Weight of the divergence from the base model.", min=0, max=100)
    seed: int = option(0, "Seed of the texts, the adapter and the masks.", min=0, max=2**31)


@grouped
def adapt(
    output: RunFolder,
    material: Material,
    learning: AdaptOptions,
    model: str | None = option(None, "Name, .gguf file, folder, or name on the hub.", "--model -m"),
    draws: int = option(8, "Draw the masks of a held-out block this many times.", min=1, max=256),
    device: str = option("cpu", "cpu, cuda or cuda:N."),
    threads: int | None = option(None, "Number of CPU threads.", min=1, max=256),
) -> None:
    """Train a LoRA that makes an autoregressive model a block diffusion model. Ctrl-C saves.

    Use the result with `--adapter OUTPUT/adapter.safetensors` and the same `--model`.
    """
    where = device_of(device)
    import torch

    from paradecode.models.adapter import Facts, check_base, read_adapter, unused_token
    from paradecode.models.catalogue import open_model
    from paradecode_lab.training.adaptation.texts import read_texts
    from paradecode_lab.training.adaptation.training import ADAPTER, AdaptationPlan, AdapterTraining
    from paradecode_lab.training.running import CHECKPOINT

    plan = AdaptationPlan(**asdict(learning))
    if threads is not None:
        torch.set_num_threads(threads)
    base = open_model(model)
    check_base(base.config)
    mask = unused_token(base)
    make_folder("OUTPUT", output)
    file = material.texts or output / f"own-{plan.seed}-{material.max_tokens}.jsonl"
    if material.texts is None:
        _make_texts(file, model, material, plan.seed, threads)
    length = min(material.length, base.config.context_length)
    texts = read_texts(file, base, plan.block, length)
    held = min(material.held_out, len(texts) // 8)
    if held == 0:
        raise InvalidInput("--texts", f"{len(texts)} texts", f"give at least {FEWEST} that differ")
    facts = Facts(base.config.name, plan.rank, plan.block, mask, plan.shift)
    trainer = AdapterTraining(plan, base, facts, texts[held:], where)
    if (output / CHECKPOINT).exists():
        trainer.resume(output / CHECKPOINT)
    named = base.tokenizer.token(mask) or "a row of the embedding that no token has"
    out.print(f"the mask is token {mask}: {named}", highlight=False, markup=False)
    until_stopped("adapting", trainer, output)

    def measured(tick: Callable[[int, int], None]) -> Likelihood:
        from paradecode_lab.training.adaptation.evaluation import likelihood
        from paradecode_lab.training.adaptation.model import tensors_of

        stored = tensors_of(read_adapter(output / ADAPTER, base.config), torch.float32, where)
        adapted = trainer.model.using(stored)
        return likelihood(adapted, texts[:held], plan.block, draws, plan.seed, tick)

    _tell(output, trainer, watched("held-out texts", measured))
    out.print(f"--adapter {output / ADAPTER}", soft_wrap=True, highlight=False)


def _make_texts(
    file: Path, model: str | None, material: Material, seed: int, threads: int | None
) -> None:
    """Let the model write its own conversations into a file, on the CPU."""
    from paradecode.llm import LLM
    from paradecode_lab.training.adaptation.texts import make_own

    with LLM(model, threads=threads) as llm:
        watched(
            "own texts",
            lambda tick: make_own(file, llm, material.own, material.max_tokens, seed, tick),
        )


def _tell(output: Path, trainer: AdapterTraining, found: Likelihood) -> None:
    report = {"plan": asdict(trainer.plan), "facts": asdict(trainer.facts), **asdict(found)}
    (output / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    table = Table(f"{found.texts} held-out texts, {found.tokens} tokens", "")
    table.add_row("perplexity, at most", _shown(found.bound))
    table.add_row("perplexity of the autoregressive model", _shown(found.autoregressive))
    for quarter, nats in zip(("1/4", "1/2", "3/4", "all"), found.cross_entropy, strict=True):
        table.add_row(f"cross-entropy, up to {quarter} masked", f"{nats:.3f}")
    out.print(table)


def _shown(value: Interval) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"
