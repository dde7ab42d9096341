"""Chimera's head equals a plain implementation of the paper that computes every row anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_heads import CONFIG, HEADS, D, opened

from by_hand import Numbers, attended, check_paths, normed, silu, stored, turned
from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidModel
from paradecode.core.head import HeadDraft, Memory
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network


def trigram(w: Numbers, tokens: list[int]) -> np.ndarray:
    """Return the state of the last three tokens; missing tokens are replaced by the first one."""
    three = ([tokens[0]] * 2 + tokens)[-3:]
    x = np.concatenate([w["embed_tokens.weight"][token] for token in three])
    x = x + silu(w["trimlp.0.linear.weight"] @ x + w["trimlp.0.linear.bias"])
    return w["trimlp.1.weight"] @ x


def logits(w: Numbers, states: np.ndarray, text: list[int], path: list[int]) -> np.ndarray:
    """Return the logits after the text and a path of drafted tokens."""

    def of(name: str) -> np.ndarray:
        return w[f"layers.0.{name}.weight"]

    final = [normed(row, w["verifier_norm.weight"]) for row in states]
    grams = [trigram(w, text + path[:count]) for count in range(len(path) + 1)]
    seen = [normed(row, of("input_layernorm")) for row in (*final, *grams)]
    keys = [turned(of("self_attn.k_proj") @ row, place) for place, row in enumerate(seen)]
    values = np.array([of("self_attn.v_proj") @ row for row in seen])
    mixed = []
    for query in np.split(of("self_attn.q_proj") @ seen[-1], HEADS):
        mixed.append(attended(turned(query, len(seen) - 1), keys, values))
    x = grams[-1] + of("self_attn.o_proj") @ np.concatenate(mixed)
    n = normed(x, of("post_attention_layernorm"))
    x = x + of("mlp.down_proj") @ (silu(of("mlp.gate_proj") @ n) * (of("mlp.up_proj") @ n))
    head = w[f"chimera_head.{min(len(path), 2)}.0.weight"]  # The last serves all further levels.
    return head @ np.concatenate([final[-1], x])


@pytest.mark.parametrize("pieces", [((0, 6), (6, 7), (7, 9)), ((0, 1),)])
def test_every_path_is_what_the_paper_says_of_it(pieces, tmp_path: Path) -> None:
    random_head("chimera", CONFIG, tmp_path, seed=4)
    w = stored(tmp_path)
    head, random, memory = opened(tmp_path), np.random.default_rng(2), Memory()
    states, text = random.standard_normal((9, D)).astype(np.float32), random.integers(0, 40, 9)
    for first, last in pieces:
        asked = HeadDraft(memory, states[first:last], text[first:last], first, 40, 2, 5)
        (tree,) = run_head(head, [asked], apply_network)
    assert tree.depths.max() == 5

    final, known = states[:last].astype(np.float64), text[:last].tolist()
    check_paths(tree, lambda path: logits(w, final, known, path))


def test_without_the_drafts_half_the_levels_are_medusas(tmp_path: Path) -> None:
    random_head("chimera", CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if name.startswith("chimera_head"):
            tensors[name][:, D:] = 0
    save_file(tensors, tmp_path / "model.safetensors")
    head, states = opened(tmp_path), np.random.default_rng(0).standard_normal((4, D))
    trees = [run_head(head, [HeadDraft(Memory(), states.astype(np.float32), tokens, 0, 30, 2, 3)],
                      apply_network)[0] for tokens in (np.arange(4), np.arange(4) + 9)]  # fmt: skip
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    assert np.array_equal(trees[0].estimates, trees[1].estimates)


def test_heads_that_guess_different_tokens_are_refused(tmp_path: Path) -> None:
    random_head("chimera", CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["chimera_head.1.0.weight"] = tensors["chimera_head.1.0.weight"][:-1].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidModel, match="chimera_head"):
        opened(tmp_path)
