"""`paradecode train head` and `train plan`: train draft heads, and forecast larger trainings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from paradecode.cli.console import out
from paradecode.cli.options import Loading, grouped, option
from paradecode.cli.outputs import make_folder
from paradecode.cli.progress import stopping, watched
from paradecode.core.errors import InvalidInput
from paradecode_lab.commands.train_steps import RunFolder, need_torch, until_stopped

if TYPE_CHECKING:
    from paradecode.llm import LLM
    from paradecode.models.heads import HeadFile
    from paradecode_lab.training.heads.data import HeadData
    from paradecode_lab.training.heads.initial import HeadShape
    from paradecode_lab.training.heads.objective import Acceptance
    from paradecode_lab.training.heads.speed import HeadSpeed
    from paradecode_lab.training.heads.texts import HeadText
    from paradecode_lab.training.heads.training import HeadPlan, HeadTraining

REPORT = "report.json"
SPEED_TOKENS = 96
AGAIN = "stopped; the same command goes on"
KINDS = (
    "eagle3, eagle1, p-eagle, medusa, mtp, clover, clover-2, falcon, chimera, longspec, dovetail, "
    "kangaroo, m2r2, ppd, hidden-transfer or flexdraft"
)
Method = Annotated[str, typer.Argument(help=f"{KINDS}.")]


@dataclass(frozen=True)
class HeadMaterial:
    """Options of the texts to learn from."""

    data: Path | None = option(None, "Folder of texts and states; default: OUTPUT/data.")
    prompts: list[str] | None = option(None, "File of prompts for the model; repeat the option.")
    own: int = option(2000, "Further texts: tasks, and questions by the model.", max=10**7)
    avoid: list[str] | None = option(None, "File of prompts not to train on; repeat.")
    max_tokens: int = option(192, "Generate at most this many tokens of an answer.", min=8)
    length: int = option(512, "Most tokens of a text with its prompt.", min=16, max=1 << 16)
    sampled: float = option(0.2, "Share of answers sampled at temperature 0.8.", min=0, max=1)
    held_out: float = option(0.03, "Share of texts held out for evaluation.", min=0.001, max=0.5)
    cache_gb: float = option(8.0, "Most gigabytes of hidden states on disk.", min=0)


@dataclass(frozen=True)
class HeadSizes:
    """Options of the head's size."""

    taps: str = option(
        "", "Layers that EAGLE-3 reads, from 0: 1,14,29; behind which Kangaroo or M2R2 drafts, and "
        "rows of Hidden Transfer or FlexDraft enter."
    )  # fmt: skip
    layers: int = option(1, "Number of layers, or of blocks of a Medusa head.", min=1, max=8)
    inner: int = option(
        0,
        "Width of the MLP; 0: the target's (Kangaroo: none). Of what M2R2 adds; 0: an eighth.",
        min=0,
        max=1 << 16,
    )
    vocabulary: int = option(8192, "Number of tokens that the head can draft.", min=16, max=1 << 20)
    own_rows: bool = option(
        True, "Train rows of the LM head, or use the target's.", "--own-rows/--target-rows"
    )
    medusa_heads: int = option(
        4,
        "Heads of Medusa or Chimera, levels of Clover, prompt tokens of PPD, rows of Hidden "
        "Transfer, guessing masks of FlexDraft.",
        min=1,
        max=16,
    )

    def shape(self, method: str) -> HeadShape:
        from paradecode_lab.training.heads.initial import HeadShape

        try:
            taps = tuple(int(tap) for tap in self.taps.split(",") if tap.strip())
        except ValueError:
            raise InvalidInput("--taps", self.taps, "write numbers with commas") from None
        return HeadShape(method, taps, self.layers, self.inner, self.vocabulary, self.medusa_heads,
                         self.own_rows)  # fmt: skip


@dataclass(frozen=True)
class HeadOptions:
    """Options of the training."""

    steps: int = option(2000, "Number of optimiser steps.", min=1, max=10**7)
    batch: int = option(16, "Number of texts in a step.", min=1, max=4096)
    rate: float = option(1e-3, "Learning rate.", min=1e-8, max=0.1)
    levels: int = option(3, "Train this many levels of a draft.", min=1, max=8)
    cooldown: float = option(0.3, "Share of steps, at the end, with a falling rate.", min=0, max=1)
    seed: int = option(0, "Seed of the texts, the weights and the batches.", min=0, max=2**31)

    def plan(self, method: str) -> HeadPlan:
        from paradecode_lab.training.heads.initial import DECAYS
        from paradecode_lab.training.heads.training import HeadPlan

        return HeadPlan(self.steps, self.batch, self.rate, self.cooldown, self.levels,
                        DECAYS.get(method, HeadPlan.decay), seed=self.seed)  # fmt: skip


@grouped
def head(
    method: Method,
    output: RunFolder,
    loading: Loading,
    material: HeadMaterial,
    sizes: HeadSizes,
    learning: HeadOptions,
    every: int = option(250, "Evaluate on held-out texts after every so many steps.", min=1),
    before: Path | None = option(
        None, "Folder of a head of these sizes, whose weights it begins with.", "--from"
    ),
    q8: bool = option(False, "Write the matrices in 8 bits, which only this engine reads."),
    speed_prompts: int = option(12, "Held-out prompts that measure the speed at the end.", min=0),
) -> None:
    """Train a draft head for a model, on texts that the model writes. Ctrl-C saves.

    The result is the folder OUTPUT/head, for `eagle(head='OUTPUT/head')` and similar methods.
    """
    need_torch()
    from paradecode.models.heads import read_head
    from paradecode_lab.training.heads.initial import METHODS
    from paradecode_lab.training.heads.training import HEAD

    shape, plan = sizes.shape(method), learning.plan(method)
    begun = None if before is None else read_head(before)
    make_folder("OUTPUT", output)
    with _opened(loading) as llm:
        trainer, data = _prepared(llm, loading, output, material, shape, plan, before=begun)
        trainer.bits = 8 if q8 else 16
        found = _trained("training", trainer, output, every)
    use = f"{METHODS[method]}(head='{output / HEAD}')"
    prompts = [data.texts[i] for i in trainer.held_out[:speed_prompts]]
    speed = _timed(loading, prompts, use) if prompts else None
    report = {
        "method": method, "model": llm.model, "plan": asdict(plan), "shape": asdict(shape),
        "texts": len(data.texts), "refused": data.refused, "tokens": trainer.tokens,
        "parameters": trainer.parameters, "coverage": trainer.coverage,
        "acceptance": asdict(found), "speed": speed and asdict(speed),
    }  # fmt: skip
    (output / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    table = Table(f"{len(trainer.held_out)} held-out texts", "")
    table.add_row("tokens that can be drafted", f"{trainer.coverage:.1%}")
    for level, share in enumerate(found.levels, 1):
        table.add_row(f"drafts right up to token {level}", f"{share:.1%}")
    table.add_row("tokens a forward, chains", f"{found.tokens_a_forward:.2f}")
    if speed is not None:
        here = f"tokens a forward, {speed.outputs} prompts here"
        table.add_row(here, f"{speed.tokens_a_forward:.2f}")
        table.add_row("times plain decoding here", f"{speed.speedup:.2f}")
        table.add_row("outputs equal to plain", f"{speed.equal} of {speed.outputs}")
    out.print(table)
    out.print(use, soft_wrap=True, highlight=False)


@grouped
def plan(
    method: Method,
    output: RunFolder,
    loading: Loading,
    material: HeadMaterial,
    sizes: HeadSizes,
    learning: HeadOptions = HeadOptions(steps=300),
) -> None:
    """Predict the gain of more data or a larger head from a law fitted to short trainings."""
    need_torch()
    make_folder("OUTPUT", output)
    from paradecode_lab.training.heads.initial import OF_ROWS
    from paradecode_lab.training.heads.scaling import ScalingLaw, ShortRun

    shape, steps = sizes.shape(method), learning.plan(method)
    if method in ("medusa", *OF_ROWS):
        raise InvalidInput("METHOD", method, "its size is fixed: plan eagle3 or another")
    runs: list[ShortRun] = []
    with _opened(loading) as llm:
        inner = shape.width(llm.config)
        other = inner or llm.config.intermediate_size  # Without an MLP, compare with some.
        kinds = [(1 / 8, inner), (1 / 4, inner), (1 / 2, inner), (1, inner), (1, other // 4),
                 (1, other // 2)]  # fmt: skip
        for share, width in kinds:
            folder = output / f"{share:g}-{width}"
            sized = replace(shape, inner=width)
            trainer, _ = _prepared(llm, loading, output, material, sized, steps, folder, share)
            found = _trained(
                f"{share:g} of the texts, MLP of {width}", trainer, folder, steps.steps
            )
            runs.append(ShortRun(trainer.tokens, trainer.parameters, found.tokens_a_forward - 1))
    law, base = ScalingLaw(runs), runs[3]
    table = Table("tokens", "parameters", "tokens a forward")
    for run in runs:
        table.add_row(f"{run.tokens:,}", f"{run.parameters:,}", f"{1 + run.gain:.3f}")
    forecasts = []
    for more, larger in ((2, 1), (4, 1), (10, 1), (1, 2), (4, 2)):
        tokens, parameters = more * base.tokens, larger * base.parameters
        said = law.at(tokens, parameters)
        forecasts.append({"tokens": tokens, "parameters": parameters, **asdict(said)})
        shown = f"expect {said.value:.3f} ({said.low:.3f} to {said.high:.3f})"
        table.add_row(f"{tokens:,}", f"{parameters:,}", shown)
    out.print(table)
    data, size = law.gains
    out.print(f"twice the tokens: {data:+.3f}, twice the parameters: {size:+.3f} tokens a forward, "
              f"with {steps.steps} steps", highlight=False)  # fmt: skip
    report = {"runs": [asdict(run) for run in runs], "gains": law.gains, "forecasts": forecasts}
    (output / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _opened(loading: Loading) -> LLM:
    from paradecode.engine.engine import Limits

    return loading.open(limits=Limits(prefix_cache=False))


def _timed(loading: Loading, texts: Sequence[HeadText], use: str) -> HeadSpeed:
    from paradecode_lab.training.heads.speed import head_speed

    with _opened(loading) as llm, stopping(AGAIN):
        ids = [text.tokens[: text.start].tolist() for text in texts]
        return watched("speed", lambda tick: head_speed(llm, ids, use, SPEED_TOKENS, tick))


def _prepared(
    llm: LLM, loading: Loading, output: Path, material: HeadMaterial, shape: HeadShape,
    plan: HeadPlan, folder: Path | None = None, share: float = 1.0, before: HeadFile | None = None,
) -> tuple[HeadTraining, HeadData]:  # fmt: skip
    """Return a training with its data; it is new, or continues where it was stopped.

    Args:
        folder: folder of the run; None takes ``output``.
        share: share of the texts that are used.
        before: the head with whose weights the training begins.
    """
    import torch

    from paradecode.models.catalogue import open_model
    from paradecode_lab.training.heads.data import make_data
    from paradecode_lab.training.heads.initial import OF_ROWS
    from paradecode_lab.training.heads.texts import TextSource
    from paradecode_lab.training.heads.training import HeadTraining, RowTraining, layers_of
    from paradecode_lab.training.running import CHECKPOINT

    if loading.threads is not None:
        torch.set_num_threads(loading.threads)
    source = TextSource(
        tuple(material.prompts or ()), material.own, tuple(material.avoid or ()),
        material.max_tokens, min(material.length, llm.config.context_length - 1),
        material.sampled, seed=plan.seed,
    )  # fmt: skip
    layers = layers_of(shape.tapped(llm.config), llm.config.layers)
    place = material.data or output / "data"
    with stopping(AGAIN):
        room = material.cache_gb * 1e9
        data = watched("texts", lambda tick: make_data(llm, source, place, tick, layers, room))
        features = watched("states", lambda tick: data.features(llm, layers, room, tick))
    if data.refused and folder is None:
        said = "prompts are like those of measurements and were left out"
        out.print(f"{data.refused} {said}", highlight=False)
    held = max(1, round(material.held_out * len(data.texts)))
    most = round(share * (len(data.texts) - held))
    made = RowTraining if shape.method in OF_ROWS else HeadTraining
    device = torch.device(loading.device if llm.backend.name.startswith("torch") else "cpu")
    base = open_model(loading.model)
    trainer = made(shape, plan, base, features, held, most, before, device)
    checkpoint = (folder or output) / CHECKPOINT
    if checkpoint.exists():
        trainer.resume(checkpoint)
    return trainer, data


def _trained(title: str, trainer: HeadTraining, folder: Path, every: int) -> Acceptance:
    """Train to the end, and return the acceptance on held-out texts."""

    def look() -> Mapping[str, float]:
        return {"tokens a forward": trainer.evaluate().tokens_a_forward}

    until_stopped(title, trainer, folder, look, every, "held out {:.3f} tokens a forward")
    return watched("held-out texts", lambda tick: trainer.evaluate())
