"""Dovetail's head against a plain reading of the paper: every row computed anew, as a sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidModel
from paradecode.core.network import Head, HeadDraft, Memory
from paradecode.core.tree import ROOT
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network

D, HEADS, SIZE = 16, 2, 4
CONFIG = ModelConfig("t", "llama", 40, D, 8, 2, 1, 8, 8, rope=Rope(dim=8))
Numbers = dict[str, np.ndarray]


def opened(folder: Path) -> Head:
    def nothing(name: str) -> np.ndarray:
        raise AssertionError(f"these heads need no {name} of the target")

    return build_head(read_head(folder), CONFIG, nothing)


def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2) + 1e-6) * gain


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def turned(x: np.ndarray, place: int) -> np.ndarray:
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * place * 10000.0 ** -(np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def fused(w: Numbers, hidden: np.ndarray, token: int) -> np.ndarray:
    h1 = hidden @ w["W_1"]
    h2 = normed(w["embed_tokens.weight"][token], w["input_layernorm.weight"]) @ w["W_2"]
    h2 = h2 * sigmoid(h2)
    z = sigmoid(np.concatenate([h1, h2]) @ w["W_z"])
    return z * h1 + (1 - z) * h2


def hidden_states(w: Numbers, states: list[np.ndarray], tokens: list[int]) -> np.ndarray:
    """What the last row says, through two layers; the first has no norm before its attention."""
    rows = [fused(w, state, token) for state, token in zip(states, tokens)]
    for number in range(2):
        name = f"layers.{number}."

        def of(part: str, x: np.ndarray, name: str = name) -> np.ndarray:
            return w[f"{name}{part}.weight"] @ x

        gain = w.get(f"{name}input_layernorm.weight")
        seen = [row if gain is None else normed(row, gain) for row in rows]
        keys = [turned(of("self_attn.k_proj", row), place) for place, row in enumerate(seen)]
        values = np.array([of("self_attn.v_proj", row) for row in seen])
        made = []
        for place, row in enumerate(rows):
            mixed = []
            for query in np.split(of("self_attn.q_proj", seen[place]), HEADS):
                scores = np.array([key @ turned(query, place) for key in keys[: place + 1]])
                shares = np.exp(scores / np.sqrt(SIZE))
                mixed.append(shares / shares.sum() @ values[: place + 1])
            x = row + of("self_attn.o_proj", np.concatenate(mixed))
            n = normed(x, w[f"{name}post_attention_layernorm.weight"])
            gate = of("mlp.gate_proj", n)
            made.append(x + of("mlp.down_proj", gate * sigmoid(gate) * of("mlp.up_proj", n)))
        rows = made
    return rows[-1]


def test_every_path_is_what_the_paper_says_of_it(tmp_path: Path) -> None:
    random_head("dovetail", CONFIG, tmp_path, seed=3)
    w = {n: t.astype(np.float64) for n, t in load_file(tmp_path / "model.safetensors").items()}
    head, random, memory = opened(tmp_path), np.random.default_rng(2), Memory()
    states, text = random.standard_normal((9, D)).astype(np.float32), random.integers(0, 40, 9)
    for first, last in ((0, 6), (6, 7), (7, 9)):
        asked = HeadDraft(memory, states[first:last], text[first:last], first, 40, 2, 4)
        (tree,) = run_head(head, [asked], apply_network)
    final = [normed(row.astype(np.float64), w["verifier_norm.weight"]) for row in states]

    def along(node: int) -> tuple[list[np.ndarray], list[int]]:
        """States and tokens of the rows up to a node; a state is what the row before it said."""
        if node == ROOT:
            return final, text.tolist()
        rows, tokens = along(int(tree.parents[node]))
        return [*rows, hidden_states(w, rows, tokens)], [*tokens, int(tree.tokens[node])]

    looked = 0
    for node in (ROOT, *range(len(tree))):
        children = tree.children(node)
        if children:
            said = w["verifier_lm_head.weight"] @ hidden_states(w, *along(node))
            chances = np.exp(said) / np.exp(said).sum()
            best = np.argsort(-chances)[: len(children)]
            assert tree.tokens[children].tolist() == best.tolist()
            assert np.allclose(tree.estimates[children], chances[best], atol=1e-4)
            looked += 1
    assert looked >= 4
    assert tree.depths.max() == 4


def test_an_open_gate_leaves_the_state_alone(tmp_path: Path) -> None:
    """Where the gate is 1 everywhere, no token is heard."""
    random_head("dovetail", CONFIG, tmp_path)
    tensors, trees = load_file(tmp_path / "model.safetensors"), []
    states = np.random.default_rng(0).standard_normal((1, D)).astype(np.float32)
    final = normed(states[0], tensors["verifier_norm.weight"]) @ tensors["W_1"]
    for opened_by in (0.0, 1e4):
        tensors["W_z"] = np.zeros((2 * D, D), np.float32)
        tensors["W_z"][:D] = opened_by * np.outer(final, np.ones(D))
        save_file(tensors, tmp_path / "model.safetensors")
        for token in (3, 30):
            asked = HeadDraft(Memory(), states, np.array([token]), 0, 3, 3, 1)
            trees += run_head(opened(tmp_path), [asked], apply_network)
    closed, other, alone, same = (tree.estimates for tree in trees)
    assert not np.allclose(closed, other, atol=1e-3)
    assert np.allclose(alone, same, atol=1e-6)


@pytest.mark.parametrize("name", ["W_1", "W_2", "input_layernorm.weight"])
def test_a_fusion_with_a_part_missing_is_refused(name: str, tmp_path: Path) -> None:
    random_head("dovetail", CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidModel) as error:
        opened(tmp_path)
    assert error.value.field == name
