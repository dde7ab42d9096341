"""Falcon's head equals a plain implementation of the paper, with PyTorch's own LSTM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_heads
from safetensors.numpy import load_file
from tiny_heads import CONFIG, SIZE, D

from by_hand import check_paths
from paradecode.backends.heads.run import run_head
from paradecode.core.head import Head, HeadDraft, Memory, Network
from paradecode.core.tree import TokenTree
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network

torch = pytest.importorskip("torch")
Tensors = dict[str, "torch.Tensor"]


def opened(folder: Path, together: int = 2) -> Head:
    config = (folder / "config.json").read_text().replace('"k_mask": 2', f'"k_mask": {together}')
    (folder / "config.json").write_text(config)
    return tiny_heads.opened(folder)


def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def guesses(w: Tensors, features: torch.Tensor, tokens: list[int], together: int) -> torch.Tensor:
    """Return the states of the last ``together`` rows, computed anew without any memory."""
    lstm = torch.nn.LSTM(2 * D, D, 2, batch_first=True)
    with torch.no_grad():
        for name, tensor in lstm.named_parameters():
            tensor.copy_(w[f"lstm.{name}"])
        embedded = w["embed_tokens.weight"][tokens]
        x = lstm(torch.cat([embedded, features], -1)[None])[0][0]
    q, k, v = (
        (x @ w[f"layers.0.self_attn.{part}_proj.weight"].T).unflatten(-1, (-1, SIZE))
        for part in "qkv"
    )
    place = torch.arange(len(x))[:, None, None] * 10000.0 ** -(torch.arange(2) / 2)

    def turned(y: torch.Tensor) -> torch.Tensor:
        a, b = y[..., :2], y[..., 2:]
        return torch.cat([a * place.cos() - b * place.sin(), b * place.cos() + a * place.sin()], -1)

    q, k = turned(q)[-together:], turned(k)  # The block sees all rows, its own too.
    weights = torch.einsum("nhd,md->nhm", q, k[:, 0]).div(SIZE**0.5).softmax(-1)
    mixed = torch.einsum("nhm,md->nhd", weights, v[:, 0]).flatten(1)
    x = x[-together:] + mixed @ w["layers.0.self_attn.o_proj.weight"].T
    n = rms(x, w["layers.0.post_attention_layernorm.weight"])
    gate, up = (n @ w[f"layers.0.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ w["layers.0.mlp.down_proj.weight"].T


@pytest.mark.parametrize("together", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 3])
def test_every_path_is_what_the_paper_says_of_it(together: int, width: int, tmp_path: Path) -> None:
    random_head("falcon", CONFIG, tmp_path, seed=2)
    w = {n: torch.tensor(t) for n, t in load_file(tmp_path / "model.safetensors").items()}
    head, random = opened(tmp_path, together), np.random.default_rng(1)
    raw = random.standard_normal((9, D)).astype(np.float32)
    features = rms(torch.tensor(raw), w["verifier_norm.weight"])
    text, memory = random.integers(0, 40, 9), Memory()
    for first, last in ((0, 5), (5, 6), (6, 9)):  # In pieces: what is carried on is right.
        asked = HeadDraft(memory, raw[first:last], text[first:last], first, 40, width, 5)
        (tree,) = run_head(head, [asked], apply_network)
    assert tree.depths.max() == 5

    def said(path: list[int]) -> np.ndarray:
        states, tokens = features, text.tolist()
        for begin in range(0, len(path) - len(path) % together, together):
            states = torch.cat([states, guesses(w, states, tokens, together)])
            tokens = tokens + path[begin : begin + together]
        state = guesses(w, states, tokens, together)[len(path) % together]
        return (state @ w["verifier_lm_head.weight"].T).numpy()

    check_paths(tree, said)


def drafted(head: Head, rows: int, depth: int = 4, ran: list[Network] | None = None) -> TokenTree:
    random = np.random.default_rng(0)

    def run(network, items):
        if ran is not None:
            ran.append(network)
        return apply_network(network, items)

    states, tokens = random.standard_normal((rows, D)).astype(np.float32), np.arange(rows)
    return run_head(head, [HeadDraft(Memory(), states, tokens, 0, 30, 2, depth)], run)[0]


@pytest.mark.parametrize(("together", "passes"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_a_pass_makes_several_levels(together: int, passes: int, tmp_path: Path) -> None:
    random_head("falcon", CONFIG, tmp_path)
    head, ran = opened(tmp_path, together), list[Network]()
    assert drafted(head, 6, ran=ran).depths.max() == 4
    assert ran.count(head.blocks[0].after) == passes


def test_there_is_no_draft_before_there_is_a_block(tmp_path: Path) -> None:
    random_head("falcon", CONFIG, tmp_path)
    head = opened(tmp_path, 3)
    assert [len(drafted(head, rows)) > 0 for rows in (1, 2, 3, 4)] == [False, False, True, True]
