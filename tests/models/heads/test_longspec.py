"""LongSpec's layer equals a plain implementation, and its keys equal the target's cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_heads
from safetensors.numpy import load_file, save_file

from by_hand import Numbers, attended, check_paths, normed, silu, stored, turned
from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.tree import TokenTree
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.heads import build_head, longspec, read_head
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network

D, HEADS, GROUPS, SIZE = 16, 4, 2, 6
CONFIG = uniform("t", "qwen3", 40, D, 8, HEADS, GROUPS, SIZE, 8, rope=Rope(dim=SIZE),
                     norm_eps=1e-6, qkv_bias=True, qk_norm=True)  # fmt: skip


def opened(folder: Path, config: ModelConfig = CONFIG, window: int = longspec.WINDOW) -> Head:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(longspec, "WINDOW", window)
        return tiny_heads.opened(folder, config)


def attention(query: np.ndarray, keys: list, values: list) -> np.ndarray:
    groups = [head // (HEADS // GROUPS) for head in range(HEADS)]
    return np.concatenate([
        attended(q, [key[g] for key in keys], np.array([value[g] for value in values]))
        for q, g in zip(query, groups, strict=True)
    ])  # fmt: skip


def logits(w: Numbers, states: np.ndarray, tokens: list[int], window: int) -> np.ndarray:
    """Return the logits after ``tokens``; the last token is a guess or the last known one.

    Args:
        states: inputs of the target's last layer, for the tokens that the target has read.
    """

    def of(part: str, x: np.ndarray, heads: int = 0) -> np.ndarray:
        made = w[f"{part}.weight"] @ x + w.get(f"{part}.bias", 0)
        return made.reshape(heads, SIZE) if heads else made

    place, rows = len(tokens) - 1, [w["embed_tokens.weight"][token] for token in tokens]
    own = [normed(row, w["input_layernorm.weight"]) for row in rows]
    seen = range(max(0, place - window), place + 1)
    keys = [turned(of("self_attn.k_proj", own[i], GROUPS), i) for i in seen]
    values = [of("self_attn.v_proj", own[i], GROUPS) for i in seen]
    query = turned(of("self_attn.q_proj", own[place], HEADS), place)
    x = rows[place] + of("self_attn.o_proj", attention(query, keys, values))
    query = of("cross_attn.q_proj", normed(x, w["post_self_attention_layernorm.weight"]), HEADS)
    keys, values = [], []
    for i, state in enumerate(states):
        entered = normed(state, w["verifier_layers.7.attn_norm"])
        key = (w["verifier_layers.7.k"] @ entered + w["verifier_layers.7.k.bias"]).reshape(
            GROUPS, SIZE
        )
        keys.append(turned(normed(key, w["verifier_layers.7.k_norm"]), i))
        value = w["verifier_layers.7.v"] @ entered + w["verifier_layers.7.v.bias"]
        values.append(value.reshape(GROUPS, SIZE))
    x = x + of("cross_attn.o_proj", attention(turned(query, place), keys, values))
    n = normed(x, w["post_cross_attention_layernorm.weight"])
    x = x + of("mlp.down_proj", silu(of("mlp.gate_proj", n)) * of("mlp.up_proj", n))
    return w["verifier_lm_head.weight"] @ x


@pytest.mark.parametrize("window", [6, 512])
@pytest.mark.parametrize("pieces", [((0, 6), (6, 7), (7, 13)), ((0, 1),)])
def test_every_path_is_what_the_code_says_of_it(pieces, window, tmp_path: Path) -> None:
    random_head("longspec", CONFIG, tmp_path, seed=4)
    w = stored(tmp_path)
    head, random, memory = opened(tmp_path, window=window), np.random.default_rng(2), Memory()
    states, text = random.standard_normal((13, D)).astype(np.float32), random.integers(0, 40, 14)
    memory.recent = text[:1]  # As the drafter says it.
    for first, last in pieces:
        asked = HeadDraft(memory, states[first:last], text[first + 1 : last + 1], first, 40, 2, 5)
        (tree,) = run_head(head, [asked], apply_network)
        assert tree.depths.max() == 5
        seen, known = states[:last].astype(np.float64), text[: last + 1].tolist()
        said = partial(logits, w, seen, window=window)
        check_paths(tree, lambda path, said=said, known=known: said(known + path))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_its_keys_are_those_in_the_targets_cache(architecture: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from paradecode.backends import open_backend
    from paradecode.backends.interface import Span

    config, weights = tiny_checkpoint(architecture)
    random_head("longspec", config, tmp_path)
    stored = read_head(tmp_path)
    own = {n: t for n, t in stored.tensors.items() if not n.startswith("verifier_layers")}
    head = build_head(replace(stored, tensors=own), config, lambda name: weights[name].float32())
    backend = open_backend("torch", config, weights, dtype="fp64", threads=1)
    backend.reserve(1)
    tokens, rows = np.arange(11, dtype=np.int64) % config.vocab_size, np.arange(10, dtype=np.int32)
    pages, read = np.zeros(1, np.int32), tokens[:10].astype(np.int32)
    span = Span(pages, read, rows, rows, 0, rows[:0], hidden=head.taps)
    (features,) = backend.forward([span])[0].hidden.values()
    memory = Memory()
    run_head(head, [HeadDraft(memory, features, tokens[1:], 0, 4, 2, 2)], apply_network)
    last = config.layers - 1
    for made, cached in zip(memory.rows(1, 0, 10), (backend.keys[last], backend.values[last])):
        assert torch.allclose(torch.from_numpy(made.swapaxes(0, 1)).double(), cached[:10],
                              atol=1e-5)  # fmt: skip
    assert len(features) == 10


def numbers(memory: Memory, block: int) -> int:
    return sum(each.size for each in memory._kept[block][1:])


def test_its_own_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    head = opened(Path(random_head("longspec", CONFIG, tmp_path)), window=20)
    random = np.random.default_rng(0)
    states, text = random.standard_normal((900, D)).astype(np.float32), random.integers(0, 40, 901)

    def drafts(pieces: list[int], text: np.ndarray) -> tuple[Memory, list[int], list[TokenTree]]:
        memory, sizes, trees, first = Memory(), [], [], 0
        for count in pieces:
            last = first + count
            rows = HeadDraft(memory, states[first:last], text[first + 1 : last + 1], first, 9, 3, 4)
            trees += run_head(head, [rows], apply_network)
            sizes.append(numbers(memory, 0))
            first = last
        return memory, sizes, trees

    pieces = [100, *[3] * 100, 400, *[1] * 100]
    memory, sizes, trees = drafts(pieces, text)
    assert max(sizes) <= 2 * (20 + 3 * 4) * 2 * GROUPS * SIZE
    assert numbers(memory, 1) >= 900 * 2 * GROUPS * SIZE  # The target's: a row for each of its.
    _, _, (whole,) = drafts([900], text)
    other = text.copy()
    other[: 900 - 20] = 7
    _, _, (same,) = drafts([900], other)
    for tree in (trees[-1], same):
        assert tree.tokens.tolist() == whole.tokens.tolist()
        assert np.allclose(tree.estimates, whole.estimates, atol=1e-6)
    other[900 - 20] = (text[900 - 20] + 1) % 40
    _, _, (apart,) = drafts([900], other)
    assert not np.allclose(apart.estimates, whole.estimates, atol=1e-6)


def test_the_published_window_is_512(tmp_path: Path) -> None:
    own, crossing = opened(Path(random_head("longspec", CONFIG, tmp_path))).blocks
    assert (own.window, own.crosses, crossing.window, crossing.crosses) == (512, False, 0, True)


def test_published_folders_have_keys_that_nothing_reads(tmp_path: Path) -> None:
    random_head("longspec", CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for part in "kv":
        tensors[f"cross_attn.{part}_proj.weight"] = np.ones((GROUPS * SIZE, D), np.float32)
        tensors[f"cross_attn.{part}_proj.bias"] = np.ones(GROUPS * SIZE, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    assert opened(tmp_path).kind == "longspec"


@pytest.mark.parametrize(("changes", "field"), [
    ({"layers": 1}, "layers"), ({"kv_heads": 1}, "num_key_value_heads"),
    ({"head_dim": 8, "rope": Rope(dim=8)}, "head_dim"),
])  # fmt: skip
def test_targets_whose_keys_do_not_fit_are_refused(changes, field, tmp_path: Path) -> None:
    random_head("longspec", CONFIG, tmp_path)
    with pytest.raises(InvalidModel) as error:
        opened(tmp_path, CONFIG.altered(**changes))
    assert error.value.field == field
