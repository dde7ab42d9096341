"""Tests of FlexDraft against a plain implementation of the paper's parallel mode.

One pass computes the text, the draft and a group of masks after each of its tokens anew.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import PROMPT, check_plain, check_written, deep, head_engine, serve

from paradecode.backends import open_backend
from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import Span
from paradecode.core.errors import InvalidModel
from paradecode.core.head import HeadDraft, Memory
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.heads import HeadFile, build_head, read_head
from paradecode.models.heads.flexdraft import own_attention
from paradecode.models.mixture import Mixture
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor, Weights
from paradecode.testing.conformance import check
from paradecode.testing.machines import KINDS, checkpoint
from paradecode.testing.network_reference import apply_network

LAYERS, SPLIT, BLOCK, RANK = 5, 2, 4, 6
CONFIG, WEIGHTS = deep(LAYERS)
engine = partial(head_engine, (CONFIG, WEIGHTS))
D = CONFIG.hidden_size
OWN = ("q", "k", "v", "o")
Arrays = dict[str, np.ndarray]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, CONFIG, WEIGHTS, SPLIT)


def write(folder: Path, config: ModelConfig, weights: Weights, split: int) -> Path:
    """Write the weights as they are published, with MLPs and norms that nothing reads."""
    random, d = np.random.default_rng(1), config.hidden_size

    def near(name: str) -> np.ndarray:
        rows = weights[name].float32()
        noise = random.standard_normal(rows.shape) * np.abs(rows).mean()
        return (rows + 0.5 * noise).astype(np.float32)

    tensors = {"mask_embedding": random.standard_normal(d).astype(np.float32)}
    for number in range(config.layers - split):
        target, name = f"layers.{split + number}.", f"layers.{number}."
        for part in OWN:
            tensors[f"{name}self_attn.{part}_proj.weight"] = near(f"{target}{part}")
        for part in "qk":
            tensors[f"{name}self_attn.{part}_norm.weight"] = near(f"{target}{part}_norm")
        tensors[f"{name}mlp.up_proj.weight"] = near(f"{target}up")
        tensors[f"{name}input_layernorm.weight"] = near(f"{target}attn_norm")
    tensors["norm.weight"] = near("norm")
    for place, shape in (("0", (RANK, 2 * d)), ("2", (config.vocab_size, RANK))):
        tensors[f"anchor_bias_mlp.{place}.weight"] = random.standard_normal(shape, np.float32)
        tensors[f"anchor_bias_mlp.{place}.bias"] = random.standard_normal(shape[0], np.float32)
    save_file(tensors, folder / "model.safetensors")
    said = {
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim, "hidden_size": d, "block_size": BLOCK,
        "flexdraft_config": {"target_layer_ids": [*range(split, config.layers)],
                             "enable_anchor_bias_logits": True},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(said))
    return folder


class Paper:
    """One pass of the paper's parallel mode in float64."""

    def __init__(self, folder: Path) -> None:
        self.own = {
            n: t.astype(np.float64) for n, t in load_file(folder / "model.safetensors").items()
        }
        self.w = {n: WEIGHTS[n].float32().astype(np.float64) for n in CONFIG.tensors()}

    def __call__(self, text: list[int], draft: list[int]) -> tuple[list[int], np.ndarray]:
        """Return what the target predicts after each token, and the states of the masks.

        The tokens are those of the text and the draft. The states [groups, BLOCK, D] are inputs of
        the LM head. There is a group for the text's last token and one for each draft token.
        """
        known = len(text) + len(draft)
        x, places = self.w["embed"][[*text, *draft]], np.arange(known)
        seen = np.tri(known, dtype=bool)
        for layer in range(LAYERS):
            if layer == SPLIT:
                for group in range(len(draft) + 1):
                    x = np.concatenate([x, np.tile(self.own["mask_embedding"], (BLOCK, 1))])
                    last = len(text) - 1 + group
                    places = np.append(places, last + 1 + np.arange(BLOCK))
                    rows = np.zeros((BLOCK, len(x)), bool)
                    rows[:, : last + 1] = rows[:, -BLOCK:] = True
                    seen = np.pad(seen, ((0, 0), (0, BLOCK)))
                    seen = np.concatenate([seen, rows])
            x = self._layer(layer, x, places, seen, known)
        normed = _norm(x, self.w["norm"])
        head = self.w["embed" if CONFIG.tied_head else "head"]
        said = (normed[:known] @ head.T).argmax(1).tolist()
        return said, normed[known:].reshape(len(draft) + 1, BLOCK, D)

    def guesses(self, states: np.ndarray, bonus: int) -> list[int]:
        """Return the guessed tokens [BLOCK - 1]; the first mask stands for the bonus token."""
        head, p = self.w["embed" if CONFIG.tied_head else "head"], self.own
        states = states[1:]
        both = np.concatenate([np.tile(self.w["embed"][bonus], (len(states), 1)), states], 1)
        inner = both @ p["anchor_bias_mlp.0.weight"].T + p["anchor_bias_mlp.0.bias"]
        inner = inner / (1 + np.exp(-inner))
        added = inner @ p["anchor_bias_mlp.2.weight"].T + p["anchor_bias_mlp.2.bias"]
        return (states @ head.T + added).argmax(1).tolist()

    def _layer(self, layer, x, places, seen, known):
        name, w = f"layers.{layer}.", self.w
        h, mixed, heads = _norm(x, w[f"{name}attn_norm"]), {}, {}
        for part in OWN[:3]:
            made = h @ w[name + part].T
            if len(x) > known:
                made[known:] = h[known:] @ self._mine(layer, f"{part}_proj").T
            made = made.reshape(len(x), -1, CONFIG.head_dim)
            if part != "v":
                gains = np.tile(w[f"{name}{part}_norm"], (len(x), 1))
                if len(x) > known:
                    gains[known:] = self._mine(layer, f"{part}_norm")
                made = _turned(_norm(made, gains[:, None]), places)
            heads[part] = made
        group = CONFIG.heads // CONFIG.kv_heads
        for head in range(CONFIG.heads):
            keys, values = heads["k"][:, head // group], heads["v"][:, head // group]
            scores = heads["q"][:, head] @ keys.T / np.sqrt(CONFIG.head_dim)
            scores[~seen] = -np.inf
            shares = np.exp(scores - scores.max(1, keepdims=True))
            mixed[head] = shares / shares.sum(1, keepdims=True) @ values
        wide = np.concatenate([mixed[head] for head in range(CONFIG.heads)], 1)
        out = wide @ w[f"{name}o"].T
        if len(x) > known:
            out[known:] = wide[known:] @ self._mine(layer, "o_proj").T
        x = x + out
        h = _norm(x, w[f"{name}mlp_norm"])
        gate = h @ w[f"{name}gate"].T
        return x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{name}up"].T)) @ w[f"{name}down"].T

    def _mine(self, layer: int, part: str) -> np.ndarray:
        return self.own[f"layers.{layer - SPLIT}.self_attn.{part}.weight"]


def _norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.norm_eps) * gain


def _turned(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    angles = places[:, None, None] * CONFIG.rope.inverse_frequencies()
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles),
                           b * np.cos(angles) + a * np.sin(angles)], -1)  # fmt: skip


def test_every_draft_is_that_of_the_parallel_mode(folder: Path) -> None:
    """Every draft is the group after the last accepted token, from the verification's own pass."""
    paper = Paper(folder)
    spec = f"flexdraft(head='{folder}',width=1,budget=fixed)"
    (sequence,) = serve(engine(), [spec], ignore_eos=True, max_tokens=32)
    text, groups, accepted, whole = list(PROMPT), None, 0, 0
    for step in sequence.trace:
        draft = step.tree.tokens.tolist()
        assert (step.tree.parents == np.arange(-1, len(draft) - 1)).all()
        if groups is None:
            assert not draft
        else:
            wanted = paper.guesses(groups[accepted], text[-1])
            assert draft == wanted[: len(draft)]
            whole += len(draft) == BLOCK - 1
        said, groups = paper(text, draft)
        accepted = step.accepted
        assert list(step.tokens) == [*draft[:accepted], said[len(text) - 1 + accepted]]
        text += step.tokens
    assert whole > 5


ROPES = {
    "whole": Rope(dim=16), "part": Rope(dim=8),
    "yarn": Rope(dim=16, scaling="yarn", factor=4.0, original_context=16, attention_factor=1.2),
}  # fmt: skip


@pytest.mark.parametrize("rope", list(ROPES))
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "llama, MLPs with biases"])
def test_with_the_targets_own_attention_masks_are_rows_of_the_target(kind, rope, tmp_path):
    """With the target's own attention weights, mask rows equal rows of the target's last layer."""
    config, weights = tiny_checkpoint(kind.split(",")[0])
    config = config.altered(rope=replace(ROPES[rope], theta=config.rope.theta))
    random, text = np.random.default_rng(2), np.array([5, 9, 7, 11, 6], np.int32)
    config = config.altered(mlp_bias="," in kind)
    weights = dict(weights)
    for name, shape in config.tensors().items():
        if name not in weights:
            weights[name] = Tensor(random.standard_normal(shape, np.float32), shape)
    mask = random.standard_normal(config.hidden_size).astype(np.float32)
    tensors = {f"layers.0.self_attn.{theirs}": weights[f"layers.1.{ours}"].float32()
               for ours, theirs in own_attention(config)}  # fmt: skip
    file = HeadFile("flexdraft", {**tensors, "mask_embedding": mask}, (0,), config.heads,
                    config.kv_heads, config.head_dim, block_size=BLOCK)  # fmt: skip
    head = build_head(file, config, lambda name: weights[name].float32())

    backend = open_backend("torch", config, weights, dtype="fp64", threads=1)
    backend.reserve(1)
    at, pages = np.arange(len(text), dtype=np.int32), np.zeros(1, np.int32)
    (read,) = backend.forward([Span(pages, text, at, at, 0, at[:0], hidden=(0,))])
    rows = np.arange(BLOCK, dtype=np.int32)
    span = Span(pages, rows, len(text) + rows, np.full(BLOCK, -1, np.int32), len(text), rows[1:],
                mask=np.ones((BLOCK, BLOCK), bool), layers=(1,),
                resume=np.tile(mask, (BLOCK, 1)))  # fmt: skip
    said = backend.forward([span])[0].logits
    values = said.gather(np.tile(np.arange(config.vocab_size, dtype=np.int32), (BLOCK - 1, 1)))
    shares = np.exp(values - values.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)

    known = np.append(text[1:], 3).astype(np.int64)
    states = read.hidden[0].astype(np.float32)
    drafts = []
    for cut in (len(text), 2):  # At once, and in two parts: keys and values are kept.
        memory = Memory()
        parts = [(0, cut), (cut, len(text))] if cut < len(text) else [(0, cut)]
        for first, last in parts:
            asked = HeadDraft(memory, states[first:last], known[first:last], first, 3, 1, 3)
            (tree,) = run_head(head, [asked], apply_network)
        drafts.append(tree)
    for tree in drafts:
        assert tree.tokens.tolist() == values.argmax(1).tolist()
        assert np.allclose(tree.estimates, shares.max(1), rtol=1e-3)


def test_without_the_mlp_the_masks_guess_alone(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    plain = {name: t for name, t in tensors.items() if not name.startswith("anchor")}
    trees = []
    config = (folder / "config.json").read_text()
    off = config.replace('"enable_anchor_bias_logits": true', '"enable_anchor_bias_logits": false')
    for kept, said in ((tensors, config), (plain, off), (tensors, off)):
        save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(said)
        (one,) = serve(engine(), [f"flexdraft(head='{folder}',budget=fixed)"], ignore_eos=True)
        trees.append([step.tree.tokens.tolist() for step in one.trace])
    assert trees[0] != trees[1] == trees[2]
    assert any(trees[1])


@pytest.mark.parametrize("tokens", [0, 8])
@pytest.mark.parametrize("own_rows", [False, True])
def test_the_calibration_adds_to_the_tokens_that_the_head_has(own_rows, tokens, folder):
    """Calibration works with one row per target token and with one row per head token."""
    tensors = load_file(folder / "model.safetensors")
    random, ids = np.random.default_rng(4), np.arange(1, CONFIG.vocab_size, 3)
    given = {"token": np.array([3, 9]), "state": random.standard_normal((2, D)).astype(np.float32)}
    (every,) = apply_network(opened(folder).masks.bias, [given])
    tensors["d2t"] = ids - np.arange(len(ids))
    for part in ("weight", "bias") if own_rows else ():
        tensors[f"anchor_bias_mlp.2.{part}"] = tensors[f"anchor_bias_mlp.2.{part}"][ids]
    save_file(tensors, folder / "model.safetensors")
    head = build_head(read_head(folder), CONFIG, lambda name: WEIGHTS[name].float32(), tokens)
    (found,) = apply_network(head.masks.bias, [given])
    assert np.allclose(found, every[:, ids[: tokens or None]], atol=1e-5)


@pytest.mark.parametrize("name", ["torch", "native"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_outputs_are_plain_ones(temperature: float, name: str, folder: Path) -> None:
    specs = [f"flexdraft(head='{folder}'{rest})" for rest in
             (",budget=fixed", ",width=2,depth=2", ",vocabulary=32")]  # fmt: skip
    check_plain(partial(engine, name), [*specs, f"suffix+{specs[0]}"], temperature=temperature)


def test_a_folder_that_was_read_and_written_drafts_the_same(folder: Path, tmp_path: Path) -> None:
    spec = "flexdraft(head='{}',budget=fixed)"
    check_written(folder, tmp_path / "again", engine, spec, {"hidden_size": D})


def test_any_masks_are_exact(tmp_path: Path) -> None:
    (kind,) = (each for each in KINDS if each.name == "qwen3-near-tie")
    head = write(tmp_path, *checkpoint(kind), 1)
    only = ("mixed-methods", "chunks-of-3")
    check(f"flexdraft(head='{head}')", kinds=[kind.name], only=only)


def opened(folder: Path, config: ModelConfig = CONFIG) -> Any:
    return build_head(read_head(folder), config, lambda name: WEIGHTS[name].float32())


def setting(**values: Any) -> Callable[[Arrays, dict[str, Any]], Any]:
    return lambda t, said: said.update(values)


def layers(ids: Any) -> Callable[[Arrays, dict[str, Any]], Any]:
    return lambda t, said: said["flexdraft_config"].update(target_layer_ids=ids)


def extra(name: str, size: int = 3) -> Callable[[Arrays, dict[str, Any]], Any]:
    return lambda t, said: t.update({name: np.zeros(size, np.float32)})


@pytest.mark.parametrize(("change", "field"), [
    (lambda t, said: t.pop("layers.1.self_attn.k_proj.weight"), "layers.1.self_attn.k_proj"),
    (lambda t, said: t.pop("anchor_bias_mlp.2.bias"), "anchor_bias_mlp.2.bias"),
    (lambda t, said: t.update({"anchor_bias_mlp.2.weight": np.zeros((3, RANK), np.float32)}),
     "anchor_bias_mlp.2.weight"),
    (lambda t, said: t.update({"mask_embedding": np.zeros(D + 1, np.float32)}), "mask_embedding"),
    (lambda t, said: t["mask_embedding"].fill(np.inf), "mask_embedding"),
    (lambda t, said: t.update({"layers.0.self_attn.sinks": np.zeros(2, np.float32)}), "sinks"),
    (lambda t, said: t.update({"layers.3.self_attn.q_proj.weight": np.zeros((2, 2), np.float32)}),
     "layers.3"),
    (lambda t, said: [t.pop(name) for name in list(t) if "anchor" in name],
     "enable_anchor_bias_logits"),
    (extra("layers.0"), "layers.0"), (extra("layers."), "layers."),
    (extra("layers.0.extra.weight"), "extra"), (extra("layers.x.foo.bar"), "layers.x.foo.bar"),
    (extra("layers.9.input_layernorm.weight"), "layers.9"), (extra("norm.weight"), "norm.weight"),
    (extra("layers.0.self_attn.q_proj.bias", CONFIG.heads * CONFIG.head_dim), "q_proj.bias"),
    (extra("layers.0.mlp.up_proj.weight"), "up_proj"),
    (lambda t, said: t.update({
        "d2t": np.arange(20), "anchor_bias_mlp.2.weight": np.zeros((25, RANK), np.float32),
        "anchor_bias_mlp.2.bias": np.zeros(25, np.float32)}), "anchor_bias_mlp.2.weight"),
    (layers([1, 2, 3]), "target_layer_ids"), (layers([2, 4]), "target_layer_ids"),
    (layers([3, 4]), "layers.2"), (layers([]), "target_layer_ids"),
    (layers(["2", 3, 4]), "target_layer_ids"), (layers([0, 1, 2, 3, 4]), "target_layer_ids"),
    (layers(None), "target_layer_ids"), (layers([1 << 60]), "target_layer_ids"),
    (setting(block_size=1), "block_size"), (setting(block_size=1 << 30), "block_size"),
    (setting(num_attention_heads=2 * CONFIG.heads), "heads"),
])  # fmt: skip
def test_what_does_not_fit_is_named(change: Any, field: str, folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    tensors = {n: t.copy() for n, t in load_file(folder / "model.safetensors").items()}
    change(tensors, said)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(InvalidModel, match=field):
        opened(folder)


def test_targets_whose_layers_the_masks_cannot_pass_are_refused(folder: Path) -> None:
    for config in (
        CONFIG.altered(sliding_window=8),
        CONFIG.altered(mixture=Mixture(experts=4, chosen=2, expert_size=8)),
    ):
        with pytest.raises(InvalidModel, match="model"):
            opened(folder, config)
