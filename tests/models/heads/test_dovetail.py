"""Dovetail's head equals a plain implementation of the paper that computes every row anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_heads import CONFIG, HEADS, D, opened

from by_hand import Numbers, attended, check_paths, normed, sigmoid, silu, stored, turned
from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidModel
from paradecode.core.head import HeadDraft, Memory
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network


def fused(w: Numbers, hidden: np.ndarray, token: int) -> np.ndarray:
    h1 = hidden @ w["W_1"]
    h2 = normed(w["embed_tokens.weight"][token], w["input_layernorm.weight"]) @ w["W_2"]
    h2 = silu(h2)
    z = sigmoid(np.concatenate([h1, h2]) @ w["W_z"])
    return z * h1 + (1 - z) * h2


def hidden_states(w: Numbers, states: list[np.ndarray], tokens: list[int]) -> np.ndarray:
    """Return the last row after two layers; the first has no norm before its attention."""
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
                asks, known = turned(query, place), slice(place + 1)
                mixed.append(attended(asks, keys[known], values[known]))
            x = row + of("self_attn.o_proj", np.concatenate(mixed))
            n = normed(x, w[f"{name}post_attention_layernorm.weight"])
            inner = silu(of("mlp.gate_proj", n)) * of("mlp.up_proj", n)
            made.append(x + of("mlp.down_proj", inner))
        rows = made
    return rows[-1]


def test_every_path_is_what_the_paper_says_of_it(tmp_path: Path) -> None:
    random_head("dovetail", CONFIG, tmp_path, seed=3)
    w = stored(tmp_path)
    head, random, memory = opened(tmp_path), np.random.default_rng(2), Memory()
    states, text = random.standard_normal((9, D)).astype(np.float32), random.integers(0, 40, 9)
    for first, last in ((0, 6), (6, 7), (7, 9)):
        asked = HeadDraft(memory, states[first:last], text[first:last], first, 40, 2, 4)
        (tree,) = run_head(head, [asked], apply_network)
    final = [normed(row.astype(np.float64), w["verifier_norm.weight"]) for row in states]

    def said(path: list[int]) -> np.ndarray:
        """Return the logits after a path; each new row's state is the previous row's output."""
        rows, tokens = [*final], text.tolist()
        for token in path:
            rows, tokens = [*rows, hidden_states(w, rows, tokens)], [*tokens, token]
        return w["verifier_lm_head.weight"] @ hidden_states(w, rows, tokens)

    check_paths(tree, said, 4)
    assert tree.depths.max() == 4


def test_an_open_gate_leaves_the_state_alone(tmp_path: Path) -> None:
    """If the gate is 1 everywhere, the token has no effect."""
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
