"""The joint sampler equals static at its limits, and its layer computes the papers' formula."""

from pathlib import Path

import numpy as np
import pytest
from canvases import MASK, run, toy

from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.native.heads import run_networks
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import JointLayer
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.trained_parts import joint_layer


def saved(path: Path, **settings) -> Path:
    joint_layer(**settings).save(path)
    return path


@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_real_states_of_a_zero_layer_change_nothing_and_others_do(tmp_path, kind):
    """A zero layer leaves the states unchanged, and another layer changes them, in the native core.

    The core's head gives a row the same logits in every forward.
    """
    config, weights = tiny_checkpoint(kind)
    backend = NativeBackend(config, weights, threads=1)
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
    outputs = []
    for size in (0.0, 3.0):
        path = saved(tmp_path / f"layer{size}", size=size, **sizes)
        spec = f"joint-sampler(layer='{path}',tokens=4,score=confidence,block_length=4)"
        outputs.append(run(backend, spec, (5, 6, 7, 8), 16))
    plain = run(backend, "static(steps=4,block_length=4)", (5, 6, 7, 8), 16)
    assert outputs[0].output == plain.output
    assert outputs[1].output != plain.output
    assert outputs[0].forwards == outputs[1].forwards == plain.forwards == 4


def test_the_layer_hears_of_every_commit(tmp_path: Path) -> None:
    path, backend, masks = saved(tmp_path / "layer", size=0.0), toy("full"), list[int]()
    apply = backend.apply

    def heard(network, items):
        masks.extend(int((item["tokens"] == MASK).sum()) for item in items)
        return apply(network, items)

    backend.apply = heard
    run(backend, f"joint-sampler(layer='{path}',tokens=4,block_length=8)", (5, 6, 7, 8), 24)
    assert masks == [24 - 4 * forward - turn for forward in range(6) for turn in (1, 2, 3)]


def formula(layer: JointLayer, item: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the layer in NumPy as the papers write it."""
    t, heads = layer.tensors, layer.facts["heads"]

    def unit(x):
        return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6)

    def rotate(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                               b * np.cos(angle) + a * np.sin(angle)], axis=-1)  # fmt: skip

    states = item["states"]
    scale = np.sqrt(np.square(states).mean(axis=1, keepdims=True) + 1e-6)
    x = t["table"][item["tokens"]] + (states / scale) @ t["state"]
    h = unit(x) * t["attn_norm"]
    q, k, v = ((h @ t[name]).reshape(len(x), heads, -1).swapaxes(0, 1) for name in "qkv")
    size = q.shape[-1]
    angle = np.multiply.outer(item["positions"], 10000.0 ** -(np.arange(0, size, 2) / size))
    scores = rotate(q) @ rotate(k).swapaxes(1, 2) * size**-0.5
    seen = item["groups"][None, :] <= item["groups"][:, None]
    weights = np.exp(np.where(seen, scores, -np.inf))
    weights /= weights.sum(axis=-1, keepdims=True)
    x = x + (weights @ v).swapaxes(0, 1).reshape(len(x), -1) @ t["o"]
    h = unit(x) * t["mlp_norm"]
    gate = h @ t["gate"]
    x = x + (gate / (1 + np.exp(-gate)) * (h @ t["up"])) @ t["down"]
    return states + scale * ((unit(x) * t["out_norm"]) @ t["out"])


def test_the_layer_is_the_formula() -> None:
    layer, random = joint_layer(), np.random.default_rng(0)
    items = []
    for groups in (np.zeros(6, int), np.arange(6), np.arange(6) // 2):
        states = random.standard_normal((6, 5)).astype(np.float32)
        tokens = random.integers(0, 29, 6)
        items.append({"tokens": tokens, "states": states, "positions": np.arange(6) + 3,
                      "groups": groups})  # fmt: skip
    for item, made in zip(items, run_networks(layer.network, items), strict=True):
        assert np.allclose(made, formula(layer, item), rtol=1e-4, atol=1e-5)


def test_a_layer_of_another_model_is_refused(tmp_path: Path) -> None:
    for name, value in (("vocab_size", 30), ("hidden_size", 7)):
        path = saved(tmp_path / name, **{name: value})
        with pytest.raises(InvalidInput, match=f"{name} {value}.*train one for this model"):
            run(toy("full"), f"joint-sampler(layer='{path}')")
