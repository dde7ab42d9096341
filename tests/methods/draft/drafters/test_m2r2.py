"""Tests of M2R2 against a plain implementation without cache and tree."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import (
    Checkpoint,
    chain_of,
    check_chains,
    deep,
    head_engine,
    states_of,
)

from by_hand import attended, normed, silu, softmax, stored, turned
from paradecode.backends import open_backend
from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import Span
from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.models.heads import build_head, read_head
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network

LAYERS, STREAM, DEPTH, SURE = 6, (1, 2, 3), 6, 0.2
TAPS = tuple(layer - 1 for layer in STREAM)


def backend(target: Checkpoint) -> Any:
    """Return a PyTorch backend: its caches can be read, and a head's matrices stay unchanged."""
    return open_backend("torch", *target, dtype="fp64", threads=1)


def checkpoint(kind: str) -> Checkpoint:
    """Write a tiny model with enough layers, and with every bias that its kind may have."""
    config = replace(tiny_checkpoint(kind)[0], layers=LAYERS)
    config = config.altered(output_bias=config.qkv_bias, mlp_bias=config.qkv_bias)
    random, made = np.random.default_rng(3), {}
    for name, shape in config.tensors().items():
        noise = random.standard_normal(shape).astype(np.float32)
        values = 1 + 0.1 * noise if name.endswith("norm") else noise / np.float32(shape[-1]) ** 0.5
        made[name] = Tensor(values, shape)
    return config, made


def folder_of(target: Checkpoint, folder: Path, size: float = 1.0) -> Path:
    """Write adapters for the target's own layers; with ``size`` 0 they add nothing."""
    random_head("m2r2", target[0], folder)
    tensors = {name: values for name, values in load_file(folder / "model.safetensors").items()
               if not name.startswith("verifier_")}  # fmt: skip
    for name in tensors:
        if name.endswith(("query.up.weight", "down_proj.weight")):
            tensors[name] *= np.float32(size)
    save_file(tensors, folder / "model.safetensors")
    return folder


def opened(target: Checkpoint, folder: Path) -> Head:
    return build_head(read_head(folder), target[0], lambda name: target[1][name].float32())


class Paper:
    """The algorithm as the page describes it: float64, one position, all rows computed anew."""

    def __init__(self, target: Checkpoint, folder: Path) -> None:
        self.config, weights = target
        self.w = {n: weights[n].float32().astype(np.float64) for n in self.config.tensors()}
        self.p = stored(folder)
        self.backend = backend(target)
        self.backend.reserve(1)

    def states(self, tokens: Sequence[int], layers: tuple[int, ...]) -> list[np.ndarray]:
        """Return the outputs of the target's layers for every token."""
        return states_of(self.backend, tokens, layers)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return normed(x, self.w[name], self.config.norm_eps)

    def of(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.w[name] @ x + self.w.get(f"{name}.bias", 0)

    def placed(self, x: np.ndarray, layer: int, part: str, place: int) -> np.ndarray:
        """Return queries or keys rotated to their position."""
        x = x.reshape(-1, self.config.head_dim)
        if self.config.qk_norm:
            x = self.norm(x, f"layers.{layer}.{part}_norm")
        return turned(x, place)

    def probabilities(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the probabilities of the token that follows the last one."""
        slow, last = self.states(tokens, TAPS), len(tokens) - 1
        fast = slow[0][last]
        for number, (layer, entering) in enumerate(zip(STREAM, slow)):
            name, start = f"layers.{layer}.", f"stream.{number}."
            x = self.norm(fast, f"{name}attn_norm")
            added = self.p[f"{start}query.up.weight"] @ (self.p[f"{start}query.down.weight"] @ x)
            query = self.placed(self.of(f"{name}q", x) + added, layer, "q", last)
            normed = [self.norm(row, f"{name}attn_norm") for row in entering]
            keys = [self.placed(self.of(f"{name}k", row), layer, "k", place)
                    for place, row in enumerate(normed)]  # fmt: skip
            values = [self.of(f"{name}v", row).reshape(keys[0].shape) for row in normed]
            shared = self.config.heads // self.config.kv_heads
            mixed = [
                attended(q, [key[head // shared] for key in keys],
                         np.array([value[head // shared] for value in values]))
                for head, q in enumerate(query)
            ]  # fmt: skip
            fast = fast + self.of(f"{name}o", np.concatenate(mixed))
            x = self.norm(fast, f"{name}mlp_norm")
            gate, own = self.of(f"{name}gate", x), self.p[f"{start}mlp.gate_proj.weight"] @ x
            mlp = self.of(f"{name}down", silu(gate) * self.of(f"{name}up", x))
            inner = silu(own) * (self.p[f"{start}mlp.up_proj.weight"] @ x)
            fast = fast + mlp + self.p[f"{start}mlp.down_proj.weight"] @ inner
        return self.said(fast)

    def said(self, state: np.ndarray) -> np.ndarray:
        """Apply the target's norm and LM head to a state."""
        rows = self.w["embed" if self.config.tied_head else "head"]
        return softmax(rows @ self.norm(state, "norm"))

    def draft(self, text: Sequence[int], room: int) -> list[int]:
        return chain_of(self.probabilities, text, min(DEPTH, room), SURE)


TOKENS = np.random.default_rng(1).integers(1, 60, 12).tolist()


def guesses(head: Head, paper: Paper, memory: Memory) -> list[tuple[int, list[int], list[float]]]:
    """Yield the head's guesses for pieces of a text: known rows, tokens, and probabilities."""
    features, made = np.concatenate(paper.states(TOKENS, TAPS), axis=1).astype(np.float32), []
    for first, last in ((0, 7), (7, 8), (8, 12)):
        rows = features[first:last]
        asked = HeadDraft(memory, rows, np.zeros(len(rows), np.int64), first, 5, 5, 1)
        (tree,) = run_head(head, [asked], apply_network)
        made.append((last, tree.tokens.tolist(), tree.estimates.tolist()))
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_it_guesses_what_the_plain_reading_does(kind: str, tmp_path: Path) -> None:
    target = checkpoint(kind)
    folder = folder_of(target, tmp_path)
    paper, head, memory = Paper(target, folder), opened(target, folder), Memory()
    assert (head.taps, head.width) == (TAPS, len(TAPS) * target[0].hidden_size)
    apart = 0.0
    for known, tokens, sure in guesses(head, paper, memory):
        chances = paper.probabilities(TOKENS[:known])
        assert tokens == np.argsort(-chances)[:5].tolist()
        assert np.allclose(sure, chances[tokens], atol=1e-5)
        apart = max(apart, float(np.abs(paper.said(paper.states(TOKENS[:known], (3,))[0][-1])
                                        - chances).max()))  # fmt: skip
    assert apart > 0.01  # The adapters do something.


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_adapters_that_add_nothing_exit_early(kind: str, tmp_path: Path) -> None:
    """With adapters that add nothing, the guesses are those of an early exit of the target."""
    target = checkpoint(kind)
    folder = folder_of(target, tmp_path, size=0.0)
    paper = Paper(target, folder)
    for known, tokens, sure in guesses(opened(target, folder), paper, Memory()):
        chances = paper.said(paper.states(TOKENS[:known], (STREAM[-1],))[0][-1])
        assert tokens == np.argsort(-chances)[:5].tolist()
        assert np.allclose(sure, chances[tokens], atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_its_keys_are_those_in_the_targets_cache(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    target = checkpoint(kind)
    folder = folder_of(target, tmp_path)
    paper, memory = Paper(target, folder), Memory()
    guesses(opened(target, folder), paper, memory)
    cached: Any = backend(target)
    cached.reserve(1)
    rows = np.arange(len(TOKENS), dtype=np.int32)
    read = np.array(TOKENS, np.int32)
    cached.forward([Span(np.zeros(1, np.int32), read, rows, rows, 0, rows[:0])])
    for number, layer in enumerate(STREAM):
        own = memory.rows(number, 0, len(TOKENS))
        for made, kept in zip(own, (cached.keys[layer], cached.values[layer])):
            wanted = kept[: len(TOKENS)]
            assert torch.allclose(torch.from_numpy(made.swapaxes(0, 1)).double(), wanted, atol=1e-5)


TARGET_MODEL = deep(LAYERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(TARGET_MODEL, tmp_path, size=0.1)


def test_every_draft_is_the_plain_readings_and_no_row_is_computed_twice(folder):
    paper, spec = Paper(TARGET_MODEL, folder), f"m2r2(head='{folder}',sure={SURE},budget=fixed)"
    eng = head_engine(TARGET_MODEL)
    sequence, _, lengths = check_chains(eng, spec, 24, STREAM[-1], paper.draft)
    assert len(lengths - {0}) > 1
    assert sequence.stats.accepted > 3


@pytest.mark.parametrize("layers", [
    None, [], 1, "1", [1, 2], [1, 2, 3, 4], [0, 1, 2], [1, 3, 4], [3, 2, 1], [1.0, 2, 3],
    [True, 2, 3], [4, 5, 6], [1 << 40, (1 << 40) + 1, (1 << 40) + 2], [[1], 2, 3],
])  # fmt: skip
def test_layers_that_no_stream_can_pass_are_refused(layers: Any, folder: Path) -> None:
    said = {} if layers is None else {"stream_layers": layers}
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(InvalidModel, match=r"stream_layers|stream\.\d\."):
        opened(TARGET_MODEL, folder)


def test_layers_that_the_head_cannot_hold_are_refused(folder: Path) -> None:
    config = TARGET_MODEL[0].altered(sliding_window=4)
    with pytest.raises(InvalidModel, match="sliding window"):
        opened((config, TARGET_MODEL[1]), folder)
