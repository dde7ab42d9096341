"""Folders of BlockFFN and Step-3, which no library at hand reads, against float64 formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import SIZES, TOKENS, VOCABULARY, logits_of
from formulas import attended, drawn, rms, silu, turned
from safetensors.numpy import save_file

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidModel
from paradecode.models.safetensors_dir import read_weights

Tensors = dict[str, np.ndarray]
HEADS, EXPERTS, SIZE, RANK = 4, 6, 24, 40
SAID: dict[str, dict[str, Any]] = {
    "MiniCPM": SIZES | {
        "num_hidden_layers": 2, "ffn_type": "block", "num_experts": EXPERTS, "expert_size": SIZE,
        "norm_after_router": "rms", "scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 32,
    },
    "Step3Text": SIZES | {
        "num_hidden_layers": 3, "head_dim": 24, "share_q_dim": RANK, "num_attention_groups": 1,
        "moe_num_experts": EXPERTS, "moe_top_k": 2, "moe_intermediate_size": SIZE,
        "share_expert_dim": 32, "moe_layers_enum": "1,2", "max_position_embedding": 512,
    },
}  # fmt: skip
"""Class -> what the config.json of its tiny model says."""


def write(folder: Path, kind: str, **changes: Any) -> Tensors:
    """Write a random model with the published names, and return its tensors."""
    said, random = SAID[kind] | changes, np.random.default_rng(4)
    hidden, inner, size = said["hidden_size"], said["intermediate_size"], said.get("head_dim", 16)
    keys = (1 if kind == "Step3Text" else said["num_key_value_heads"]) * size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCABULARY, hidden)}
    for layer in range(said["num_hidden_layers"]):
        own: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
            "self_attn.k_proj.weight": (keys, hidden), "self_attn.v_proj.weight": (keys, hidden),
            "self_attn.o_proj.weight": (hidden, HEADS * size),
        }  # fmt: skip
        if kind == "MiniCPM":
            own |= {
                "self_attn.q_proj.weight": (HEADS * size, hidden),
                "mlp.router_proj.weight": (EXPERTS, hidden), "mlp.router_norm.weight": (EXPERTS,),
                "mlp.up_proj": (EXPERTS, SIZE, hidden), "mlp.down_proj": (EXPERTS, hidden, SIZE),
            }  # fmt: skip
        else:
            own |= {
                "self_attn.q_proj.weight": (RANK, hidden), "self_attn.inter_norm.weight": (RANK,),
                "self_attn.wq.weight": (HEADS * size, RANK),
            }  # fmt: skip
            mlps: dict[str, tuple[tuple[int, ...], int]] = {"mlp": ((), inner)}
            if layer:
                mlps = {"moe": ((EXPERTS,), SIZE), "share_expert": ((), said["share_expert_dim"])}
                own["moe.gate.weight"] = (EXPERTS, hidden)
            for name, (count, width) in mlps.items():
                own |= {f"{name}.{m}_proj.weight": (*count, width, hidden) for m in ("gate", "up")}
                own[f"{name}.down_proj.weight"] = (*count, hidden, width)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes["norm.weight"] = (hidden,)
    tensors = {f"model.{name}": drawn(random, shape) for name, shape in shapes.items()}
    if kind == "Step3Text":
        tensors["lm_head.weight"] = drawn(random, (VOCABULARY, hidden))
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    about = said | {"architectures": [f"{kind}ForCausalLM"], "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(about), "utf-8")
    return tensors


# The formulas, in float64.


def blockffn(tensors: Tensors) -> np.ndarray:
    """Return the logits of BlockFFN, with the dense formula: all experts are computed."""
    eps, rows = 1e-6, len(TOKENS)
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = w["model.embed_tokens.weight"][TOKENS] * 3.0
    for layer in range(2):
        at = f"model.layers.{layer}."
        h = rms(x, w[at + "input_layernorm.weight"], eps)
        q, k, v = (
            (h @ w[f"{at}self_attn.{name}_proj.weight"].T).reshape(rows, -1, 16) for name in "qkv"
        )
        mixed = attended(turned(q, 1e4), turned(k, 1e4), v)
        x = x + 1.4 / np.sqrt(2) * mixed @ w[at + "self_attn.o_proj.weight"].T
        h = rms(x, w[at + "post_attention_layernorm.weight"], eps)
        fired = np.maximum(h @ w[at + "mlp.router_proj.weight"].T, 0)
        scores = rms(fired, w[at + "mlp.router_norm.weight"], eps)
        inner = silu(np.einsum("rd,esd->res", h, w[at + "mlp.up_proj"])) * scores[..., None]
        x = x + 1.4 / np.sqrt(2) * np.einsum("res,eds->rd", inner, w[at + "mlp.down_proj"])
    last = rms(x, w["model.norm.weight"], eps) / (64 / 32)
    return last @ w["model.embed_tokens.weight"].T


def step3(tensors: Tensors) -> np.ndarray:
    """Return the logits of Step-3's text part."""
    eps, rows = 1e-5, len(TOKENS)
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def mlp(h: np.ndarray, name: str, *expert: int) -> np.ndarray:
        gate, up, down = (w[f"{name}.{m}_proj.weight"][expert] for m in ("gate", "up", "down"))
        return (silu(h @ gate.T) * (h @ up.T)) @ down.T

    x = w["model.embed_tokens.weight"][TOKENS]
    for layer in range(3):
        at = f"model.layers.{layer}."
        h = rms(x, w[at + "input_layernorm.weight"], eps)
        low = rms(
            h @ w[at + "self_attn.q_proj.weight"].T, w[at + "self_attn.inter_norm.weight"], eps
        )
        q = (low @ w[at + "self_attn.wq.weight"].T).reshape(rows, HEADS, 24)
        k, v = ((h @ w[f"{at}self_attn.{name}_proj.weight"].T)[:, None] for name in "kv")
        x = x + attended(turned(q, 5e5), turned(k, 5e5), v) @ w[at + "self_attn.o_proj.weight"].T
        h = rms(x, w[at + "post_attention_layernorm.weight"], eps)
        if not layer:
            x = x + mlp(h, at + "mlp")
            continue
        logits = h @ w[at + "moe.gate.weight"].T
        scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        scores = np.where(scores >= np.sort(scores)[:, -2:-1], scores, 0)
        sent = sum(scores[:, [e]] * mlp(h, at + "moe", e) for e in range(EXPERTS))
        x = x + mlp(h, at + "share_expert") + sent
    return rms(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def native(folder: Path) -> NativeBackend:
    return NativeBackend(*read_weights(folder), dtype="f32", kv_dtype="f32")


@pytest.mark.parametrize(("kind", "formula"), [("MiniCPM", blockffn), ("Step3Text", step3)])
def test_folders_are_their_formulas(
    tmp_path: Path, kind: str, formula: Callable[[Tensors], np.ndarray]
) -> None:
    wanted = formula(write(tmp_path, kind))
    assert wanted.std() > 0.05
    found = logits_of(native(tmp_path))
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    np.testing.assert_array_equal(found, logits_of(native(tmp_path), 7))


def test_the_text_part_of_a_step3_that_sees_pictures_opens(tmp_path: Path) -> None:
    tensors = write(tmp_path, "Step3Text")
    alone = logits_of(native(tmp_path))
    seeing = {"vision_model.class_embedding": np.zeros(4, np.float32),
              "vit_downsampler.weight": np.zeros((4, 4), np.float32)}  # fmt: skip
    save_file(tensors | seeing, tmp_path / "model.safetensors")
    about = json.loads((tmp_path / "config.json").read_text("utf-8"))
    whole = {
        "architectures": ["Step3VLForConditionalGeneration"], "tie_word_embeddings": False,
        "text_config": about | {"model_type": "step3_text"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(whole), "utf-8")
    np.testing.assert_array_equal(logits_of(native(tmp_path)), alone)


def test_an_expert_that_no_logit_reaches_adds_nothing(tmp_path: Path) -> None:
    """The dense formula multiplies it by zero, so its weights change no bit."""
    tensors = write(tmp_path, "MiniCPM")
    for layer in range(2):
        tensors[f"model.layers.{layer}.mlp.router_proj.weight"][[1, 4]] = 0
    found = []
    for fill in (0.0, 1e30):
        for name in ("up", "down"):
            for layer in range(2):
                tensors[f"model.layers.{layer}.mlp.{name}_proj"][[1, 4]] = fill
        save_file(tensors, tmp_path / "model.safetensors")
        found.append(logits_of(native(tmp_path)))
    np.testing.assert_array_equal(found[0], found[1])
    wanted = blockffn(tensors | {
        name: np.where(np.abs(tensor) > 1e20, 0, tensor) for name, tensor in tensors.items()
    })  # fmt: skip
    assert np.abs(found[0] - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(("kind", "change", "named"), [
    ("MiniCPM", {"ffn_type": "moe"}, "ffn_type"),
    ("MiniCPM", {"attention_type": "mla"}, "attention_type"),
    ("MiniCPM", {"router_act": "sigmoid"}, "router_act"),
    ("MiniCPM", {"norm_after_router": "sum"}, "norm_after_router"),
    ("MiniCPM", {"num_experts": 1 << 40}, "num_experts"),
    ("MiniCPM", {"num_experts": EXPERTS - 1}, "experts"),
    ("MiniCPM", {"num_experts": EXPERTS + 1}, "router"),
    ("MiniCPM", {"expert_size": SIZE + 1}, "experts"),
    ("Step3Text", {"num_attention_groups": 2}, "num_attention_groups"),
    ("Step3Text", {"share_q_dim": RANK + 1}, "q_down"),
    ("Step3Text", {"share_q_dim": 1 << 30}, "share_q_dim"),
    ("Step3Text", {"moe_layers_enum": "1,3"}, "moe_layers_enum"),
    ("Step3Text", {"moe_layers_enum": "1,1"}, "moe_layers_enum"),
    ("Step3Text", {"moe_layers_enum": "1"}, "layers.2"),
    ("Step3Text", {"moe_top_k": EXPERTS + 1}, "chosen"),
])  # fmt: skip
def test_contradicting_facts_are_refused(
    tmp_path: Path, kind: str, change: dict[str, Any], named: str
) -> None:
    write(tmp_path, kind)
    about = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(about | change), "utf-8")
    with pytest.raises(InvalidModel, match=named):
        native(tmp_path)


@pytest.mark.parametrize(("kind", "extra"), [
    ("MiniCPM", "model.layers.0.mlp.router_bias"), ("Step3Text", "model.layers.1.moe.extra.weight"),
])  # fmt: skip
def test_a_tensor_that_no_part_has_is_refused(tmp_path: Path, kind: str, extra: str) -> None:
    tensors = write(tmp_path, kind)
    save_file(tensors | {extra: np.zeros(EXPERTS, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidModel, match="tensor"):
        read_weights(tmp_path)
