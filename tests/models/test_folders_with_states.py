"""Folders of GLA, which no library at hand reads, against a float64 formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import TOKENS, VOCABULARY, logits_of
from formulas import drawn, rms, silu
from safetensors.numpy import save_file

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidModel
from paradecode.models.safetensors_dir import read_weights

HIDDEN, LAYERS, HEADS, KEYS, VALUES, INNER, RANK = 64, 2, 2, 12, 24, 256, 16
SAID: dict[str, Any] = {
    "architectures": ["GLAForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_heads": HEADS, "expand_k": HEADS * KEYS / HIDDEN,
    "expand_v": HEADS * VALUES / HIDDEN, "norm_eps": 1e-6, "feature_map": None,
}  # fmt: skip


def write(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    """Write a random GLA with the published names, and return its tensors."""
    random, keys, values = np.random.default_rng(5), HEADS * KEYS, HEADS * VALUES
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }  # fmt: skip
    for layer in range(LAYERS):
        own: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (HIDDEN,), "attn.q_proj.weight": (keys, HIDDEN),
            "attn.k_proj.weight": (keys, HIDDEN), "attn.v_proj.weight": (values, HIDDEN),
            "attn.g_proj.weight": (values, HIDDEN), "attn.o_proj.weight": (HIDDEN, values),
            "attn.gk_proj.0.weight": (RANK, HIDDEN), "attn.gk_proj.1.weight": (keys, RANK),
            "attn.gk_proj.1.bias": (keys,), "attn.g_norm_swish_gate.weight": (VALUES,),
            "mlp_norm.weight": (HIDDEN,), "mlp.gate_proj.weight": (INNER, HIDDEN),
            "mlp.up_proj.weight": (INNER, HIDDEN), "mlp.down_proj.weight": (HIDDEN, INNER),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    tensors = {name: drawn(random, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SAID | changes), "utf-8")
    return tensors


def gla(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Return the logits of a GLA, whose recurrence runs row by row."""
    eps, w = 1e-6, {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = w["model.embeddings.weight"][TOKENS]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        h = rms(x, w[at + "attn_norm.weight"], eps)
        q, k, v, g = (h @ w[f"{at}attn.{name}_proj.weight"].T for name in "qkvg")
        asked = h @ w[at + "attn.gk_proj.0.weight"].T @ w[at + "attn.gk_proj.1.weight"].T
        decays = (1 / (1 + np.exp(-asked - w[at + "attn.gk_proj.1.bias"]))) ** (1 / 16)
        state, made = np.zeros((HEADS, KEYS, VALUES)), []
        for row in range(len(x)):
            query, key, decay = (each[row].reshape(HEADS, KEYS) for each in (q, k, decays))
            value = v[row].reshape(HEADS, VALUES)
            state = decay[..., None] * state + key[..., None] * value[:, None]
            made.append(np.einsum("hn,hnp->hp", query / np.sqrt(KEYS), state))
        normed = rms(np.stack(made), w[at + "attn.g_norm_swish_gate.weight"], eps)
        x = x + (normed.reshape(g.shape) * silu(g)) @ w[at + "attn.o_proj.weight"].T
        h = rms(x, w[at + "mlp_norm.weight"], eps)
        gate, up = (h @ w[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (silu(gate) * up) @ w[at + "mlp.down_proj.weight"].T
    return rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def test_a_folder_of_gla_is_its_formula(tmp_path: Path) -> None:
    torch_backend = pytest.importorskip("paradecode.backends.torch.backend").TorchBackend
    wanted = gla(write(tmp_path))
    assert wanted.std() > 0.05
    config, weights = read_weights(tmp_path)
    native = NativeBackend(config, weights, dtype="f32", kv_dtype="f32")
    for backend in (torch_backend(config, weights), native):
        found = logits_of(backend, 33)
        assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    np.testing.assert_array_equal(found, logits_of(native))


@pytest.mark.parametrize(("change", "named"), [
    ({"feature_map": "relu"}, "feature_map"), ({"use_short_conv": True}, "use_short_conv"),
    ({"num_kv_heads": 1}, "num_kv_heads"), ({"expand_k": 0.02}, "expand_k"),
    ({"expand_v": float("nan")}, "expand_v"), ({"num_heads": 5}, "expand_k"),
    ({"clamp_min": -1.0}, "clamp_min"), ({"intermediate_size": 80}, "gate"),
])  # fmt: skip
def test_contradicting_facts_are_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    write(tmp_path, **change)
    with pytest.raises(InvalidModel, match=named):
        read_weights(tmp_path)
