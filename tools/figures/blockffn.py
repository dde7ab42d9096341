"""Trains tiny BlockFFN models (arXiv 2507.08771) without and with the chunk loss; counts experts.

    python -m tools.figures.blockffn [--steps 450] [--weights 0,0.5,4] [--out FILE.json]
    python -m tools.figures.blockffn FILE.json --into docs/models.md

All models learn the tasks of the tiny models from the same seed, in equal steps, with other weights
of the chunk loss. It is the share of experts that a chunk of tokens is expected to reach, where a
token reaches an expert by its share of the token's scores. The weight is constant here; the paper's
follows the chunk loss through a long training. The paper's loss between neighbours is left out.

The core runs the stored models over held-out texts, and counts the experts and the bytes of
forwards of several rows that begin at every token. ``loss`` and ``right`` are those of the answers:
the mean negative log probability of a token, and the share of answers in which every token is the
likeliest.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track
from safetensors.numpy import save_file
from torch import Tensor, nn

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend, Traffic
from paradecode.models.config import ModelConfig
from paradecode.models.safetensors_dir import read_weights, stored_name
from paradecode_lab.measure.tables import Column
from paradecode_lab.measure.tasks.tasks import TASKS
from paradecode_lab.training.diffusion.data import Pack, prompt_tokens
from paradecode_lab.training.diffusion.model import CONTEXT, TinyLayer, TinyModel
from paradecode_lab.training.diffusion.training import DiffusionPlan, TinyTraining
from paradecode_lab.training.diffusion.vocabulary import END, build_tokenizer
from tools.figures.engine import span
from tools.script import Row, err, options, stamped, tabulate

HIDDEN, LAYERS, HEADS, EXPERTS, SIZE, CHUNK = 128, 4, 4, 32, 32, 8
ROWS = (1, 2, 4, 8)
COLUMNS: tuple[Column[Row], ...] = (
    Column("weight of the chunk loss", lambda row: f"{row['weight']:g}"),
    Column("loss", lambda row: f"{row['loss']:.3f}"),
    Column("right", lambda row: f"{row['right']:.0%}"),
    Column("rows", lambda row: str(row["rows"])),
    Column(f"experts a layer, of {EXPERTS}", lambda row: f"{row['experts']:.1f}"),
    Column("kB", lambda row: f"{row['kilobytes']:.0f}"),
    Column("over one row", lambda row: f"{row['over_one']:.2f}x"),
)


class RectifiedLayer(TinyLayer):
    """A layer whose MLP is made of experts; ``fired`` keeps their rectified logits [B, T, E]."""

    fired: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        del self.gate
        self.router = nn.Linear(config.hidden_size, EXPERTS, bias=False)
        self.router_norm = nn.RMSNorm(EXPERTS, config.norm_eps)

    def feed(self, h: Tensor) -> Tensor:
        self.fired = F.relu(self.router(h))
        inner = F.silu(self.up(h)).unflatten(-1, (EXPERTS, SIZE))
        out: Tensor = self.down((inner * self.router_norm(self.fired)[..., None]).flatten(-2))
        return out


def chunk_loss(fired: Tensor, inside: Tensor) -> Tensor:
    """Return the share of experts that a chunk is expected to reach.

    Args:
        fired: [B, T, E], rectified logits of a layer.
        inside: bool [B, T], the columns that are no padding.
    """
    shares = fired / (fired.sum(-1, keepdim=True) + 1e-5) * inside[..., None]
    rest = -fired.shape[1] % CHUNK
    missed = torch.log(1 - F.pad(shares, (0, 0, 0, rest)) + 1e-5)
    spared = missed.unflatten(1, (-1, CHUNK)).sum(2).exp().mean(-1)
    return 1 - spared[F.pad(inside, (0, rest)).unflatten(1, (-1, CHUNK)).any(2)].mean()


class RectifiedTraining(TinyTraining):
    """The training of a tiny model with experts; ``weight`` is the factor of the chunk loss."""

    def __init__(self, plan: DiffusionPlan, weight: float) -> None:
        self.weight = weight
        super().__init__(plan, torch.device("cpu"))

    def made(self, config: ModelConfig) -> TinyModel:
        return TinyModel(config, self.plan.seed, RectifiedLayer)

    def loss(
        self, model: TinyModel, pack: Pack, levels: NDArray[np.float64], random: np.random.Generator
    ) -> Tensor:
        """Return the sum over rows of the answers' loss, and of the layers' mean chunk loss."""
        loss = super().loss(model, pack, levels, random)
        if not self.weight:
            return loss
        inside = np.arange(pack.tokens.shape[1] - 1) < pack.end[:, None]
        kept = torch.from_numpy(inside)
        chunks = [chunk_loss(layer.fired.float(), kept) for layer in model.layers]
        return loss + self.weight * len(inside) * torch.stack(chunks).mean()


def save(model: TinyModel, folder: Path) -> None:
    """Write the folder of a BlockFFN, whose class is MiniCPM's."""
    own, c = dict[str, np.ndarray](), model.config
    for name, value in model.state_dict().items():
        values = value.numpy()
        place, _, part = name.removesuffix(".weight").rpartition(".")
        if part == "up":
            own[f"model.{place}.mlp.up_proj"] = values.reshape(EXPERTS, SIZE, -1)
        elif part == "down":
            apart = values.reshape(-1, EXPERTS, SIZE).swapaxes(0, 1)
            own[f"model.{place}.mlp.down_proj"] = np.ascontiguousarray(apart)
        elif part in ("router", "router_norm"):
            named = {"router": "router_proj", "router_norm": "router_norm"}[part]
            own[f"model.{place}.mlp.{named}.weight"] = values
        else:
            own[stored_name(name.removesuffix(".weight"))] = values
    save_file(own, folder / "model.safetensors")
    said = {
        "architectures": ["MiniCPMForCausalLM"], "ffn_type": "block", "num_experts": EXPERTS,
        "expert_size": SIZE, "norm_after_router": "rms", "scale_emb": 1.0,
        "scale_depth": c.layers**0.5, "dim_model_base": c.hidden_size, "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size, "intermediate_size": EXPERTS * SIZE,
        "num_hidden_layers": c.layers, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads, "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.norm_eps, "rope_theta": c.rope.theta, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(said), "utf-8")


def counted(folder: Path, given: Namespace) -> tuple[dict[str, float], dict[int, list[Traffic]]]:
    """Return the loss of held-out answers, and the traffic of forwards by their number of rows."""
    backend = NativeBackend(*read_weights(folder), dtype=given.dtype)
    backend.reserve(CONTEXT // PAGE)
    tokenizer, losses, right = build_tokenizer(), list[float](), list[bool]()
    seen: dict[int, list[Traffic]] = {rows: [] for rows in ROWS}
    for one in (one for task in TASKS for one in task.held_out(given.instances)):
        prompt = prompt_tokens(tokenizer, one.prompt)
        tokens = np.array([*prompt, *tokenizer.encode(one.answer).ids, END], np.int32)
        wanted = tokens[len(prompt) :]
        (out,) = backend.forward([span(tokens[:-1], 0, len(wanted))])
        losses.append(-float(out.logits.log_probability(wanted[:, None]).mean()))
        right.append(bool((out.logits.argmax() == wanted).all()))
        for rows, found in seen.items():
            backend.traffic(True)
            for at in range(len(tokens) - max(ROWS) + 1):
                backend.forward([span(tokens[at : at + rows], at, rows)])
            found += backend.traffic(False)
    return {"loss": mean(losses), "right": mean(right)}, seen


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each weight of the chunk loss and each number of rows."""
    torch.set_num_threads(1)  # Threads that wait for one another lose on a busy machine.
    ways: list[Mapping[str, Any]] = []
    plan = DiffusionPlan(
        "autoregressive", given.seed, given.steps, given.rows, HIDDEN, LAYERS, HEADS, EXPERTS * SIZE
    )
    for weight in map(float, given.weights.split(",")):
        training = RectifiedTraining(plan, weight)
        for _ in track(range(plan.steps), f"weight {weight:g}", console=err):
            training.advance()
        with TemporaryDirectory() as place:
            save(training.average, Path(place))
            facts, seen = counted(Path(place), given)
        one = mean(each.nbytes for each in seen[1])
        for rows, found in seen.items():
            nbytes = mean(each.nbytes for each in found)
            ways.append({
                "weight": weight, "cpu_seconds": round(training.seconds), **facts, "rows": rows,
                "experts": mean(each.experts for each in found) / LAYERS,
                "kilobytes": nbytes / 1e3, "over_one": nbytes / one,
            })  # fmt: skip
    facts = {n: getattr(given, n) for n in ("steps", "rows", "seed", "dtype", "instances")}
    sizes = {"hidden": HIDDEN, "layers": LAYERS, "experts": EXPERTS, "size": SIZE, "chunk": CHUNK}
    return stamped(**facts, **sizes, ways=ways)


def main() -> None:
    chosen = options(__doc__, steps=450, rows=64, seed=0, weights="0,0.5,4", dtype="q8",
                     instances=8)  # fmt: skip
    tabulate(chosen, COLUMNS, measured)


if __name__ == "__main__":
    main()
