"""Clover's heads equal a plain implementation of the papers, and draft cheaply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_heads import CONFIG, HEADS, D, opened

from by_hand import Numbers, attended, normed, silu, stored, turned
from paradecode.backends.heads.run import run_head
from paradecode.core.head import HeadDraft, Memory, Network
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network


def trunk(w: Numbers, states: np.ndarray) -> np.ndarray:
    """Return the last row after Clover's one layer, with two query heads and one key head."""

    def of(name: str) -> np.ndarray:
        return w[f"layers.0.{name}.weight"]

    rows = [normed(row, of("input_layernorm")) for row in states]
    keys = [turned(of("self_attn.k_proj") @ row, place) for place, row in enumerate(rows)]
    values = [of("self_attn.v_proj") @ row for row in rows]
    queries = np.split(of("self_attn.q_proj") @ rows[-1], HEADS)
    mixed = [attended(turned(q, len(rows) - 1), keys, np.array(values)) for q in queries]
    x = states[-1] + of("self_attn.o_proj") @ np.concatenate(mixed)
    n = normed(x, of("post_attention_layernorm"))
    return x + of("mlp.down_proj") @ (silu(of("mlp.gate_proj") @ n) * (of("mlp.up_proj") @ n))


def cell(w: Numbers, name: str, state: np.ndarray, token: int) -> np.ndarray:
    embedded = w["clover_embed_tokens.weight"][token]
    x = normed(state, w[f"{name}.input_layernorm.weight"])
    q, k, v = (
        np.split(w[f"{name}.{part}.weight"] @ y + w[f"{name}.{part}.bias"], HEADS)
        for part, y in zip("qkv", (x, embedded, embedded))
    )
    gates = [a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in zip(q, k)]
    return state + np.concatenate([gate * part for gate, part in zip(gates, v)])


def test_clover_merges_each_token_behind_its_layer(tmp_path: Path) -> None:
    random_head("clover", CONFIG, tmp_path, seed=3)
    w = stored(tmp_path)
    random = np.random.default_rng(1)
    states = random.standard_normal((6, D)).astype(np.float32)
    text = random.integers(0, 40, 6)
    head, said = opened(tmp_path), []

    def watched(network, items):
        made = apply_network(network, items)
        if network is head.outs[0]:
            said.append(made[0][0])
        return made

    asked = HeadDraft(Memory(), states, text, 0, count=5, width=1, depth=5)
    (tree,) = run_head(head, [asked], watched)
    state = normed(trunk(w, states.astype(np.float64)), w["clover_norm.weight"])
    for level, token in enumerate([int(text[-1]), *tree.tokens[:4].tolist()]):
        state = cell(w, "clover_head_mlp_rnn", state, token)
        name = f"clover_head_mlp.{min(level, 2)}.0.linear"  # The last serves all further levels.
        inner = state + silu(w[f"{name}.weight"] @ state + w[f"{name}.bias"])
        logits = w["verifier_lm_head.weight"] @ normed(inner, w["clover_head_norm.weight"])
        assert np.allclose(said[level], logits, atol=1e-4)
        assert int(logits.argmax()) == tree.tokens[level]


@pytest.mark.parametrize("kind", ["clover", "clover-2"])
def test_a_level_costs_a_cell_and_no_layer(kind: str, tmp_path: Path) -> None:
    random_head(kind, CONFIG, tmp_path)
    head = opened(tmp_path)
    ran: list[Network] = []

    def counted(network, items):
        ran.append(network)
        return apply_network(network, items)

    random = np.random.default_rng(0)
    states, tokens = random.standard_normal((4, D)).astype(np.float32), random.integers(0, 40, 4)
    run_head(head, [HeadDraft(Memory(), states, tokens, 0, count=30, width=3, depth=4)], counted)
    assert [ran.count(block.after) for block in head.blocks] == [1] * len(head.blocks)
    assert head.cell is not None
    assert sum(ran.count(step) for step in head.cell.steps) == 4


@pytest.mark.parametrize("kind", ["clover", "clover-2"])
def test_without_values_the_cell_hears_no_token(kind: str, tmp_path: Path) -> None:
    random_head(kind, CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if ".v." in name:
            tensors[name][...] = 0
        if name == "clover_head_mlp2.weight":
            tensors[name][:, D:] = 0
    save_file(tensors, tmp_path / "model.safetensors")
    head = opened(tmp_path)
    states = np.random.default_rng(0).standard_normal((4, D)).astype(np.float32)
    trees = []
    for tokens in ([1, 2, 3, 4], [9, 8, 7, 6]):
        asked = HeadDraft(Memory(), states, np.array(tokens), 0, count=30, width=2, depth=3)
        trees += run_head(head, [asked], apply_network)
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    assert np.array_equal(trees[0].estimates, trees[1].estimates)
