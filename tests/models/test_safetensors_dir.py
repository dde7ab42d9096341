"""Folders written by transformers: configuration, weights and rotary frequencies."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paradecode.models.safetensors_dir import read_weights
from paradecode.models.weights import Kind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES = {
    "Llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "eos_token_id": [2, 3]},
    "Mistral": {"sliding_window": 16},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32},
}
PARTS = {
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
} | {part: f"self_attn.{part}_proj" for part in "qkvo"}  # fmt: skip


def build(family, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SMALL | FAMILIES[family] | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for parameter in model.parameters():  # biases and norms start as constants
        torch.nn.init.normal_(parameter)
    return model


def stored_name(name: str) -> str:
    """Return transformers' name of a canonical tensor."""
    top = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    if name in top:
        return f"{top[name]}.weight"
    _, layer, part = name.split(".", 2)
    part, _, bias = part.partition(".")
    return f"model.layers.{layer}.{PARTS[part]}.{bias or 'weight'}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_and_configuration(tmp_path, family, dtype):
    model = build(family).to(getattr(torch, dtype))
    # Small shards need an index file.
    model.save_pretrained(tmp_path, max_shard_size="60KB" if dtype == "float16" else "1GB")
    assert (tmp_path / "model.safetensors").exists() is (dtype != "float16")
    config, weights = read_weights(tmp_path)
    state = model.state_dict()
    for name, tensor in weights.items():
        assert tensor.kind.name == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
        expected = state[stored_name(name)].float().numpy()
        np.testing.assert_array_equal(tensor.float32(), expected, err_msg=name)
    unread = set(state) - {stored_name(name) for name in weights}
    assert unread == ({"lm_head.weight"} if family == "Qwen2" else set())
    assert config.architecture == family.lower()
    assert config.head_dim == (32 if family in ("Llama", "Qwen3") else 16)
    assert config.tied_head is (family == "Qwen2")
    assert config.sliding_window == (16 if family == "Mistral" else 0)
    assert config.qk_norm is (family == "Qwen3")
    assert config.qkv_bias is (family in ("Llama", "Qwen2"))
    assert config.norm_eps == model.config.rms_norm_eps
    if family == "Llama":
        assert config.eos_tokens == (2, 3)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 1e4,
    },
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 1e4,
    },
    "yarn with factors": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 1e6, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7,
        "mscale_all_dim": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("style", ["new", "old"])
@pytest.mark.parametrize("rope", ROPES)
def test_rotary_frequencies(tmp_path, rope, style):
    model = build("Llama", rope_parameters=dict(ROPES[rope]))
    model.save_pretrained(tmp_path)
    if style == "old":  # as transformers 4 wrote it
        path = tmp_path / "config.json"
        settings = json.loads(path.read_text())
        scaling = settings.pop("rope_parameters")
        settings["rope_theta"] = scaling.pop("rope_theta")
        scaling["type"] = scaling.pop("rope_type")
        settings["rope_scaling"] = None if rope == "default" else scaling
        path.write_text(json.dumps(settings))
    config, _ = read_weights(tmp_path)
    rotary = model.model.rotary_emb
    np.testing.assert_allclose(
        config.rope.inverse_frequencies(), rotary.inv_freq.numpy(), rtol=1e-5
    )
    assert config.rope.attention_factor == pytest.approx(rotary.attention_scaling)


def test_window_of_qwen_counts_only_when_it_is_used(tmp_path):
    build("Qwen2", sliding_window=32, use_sliding_window=False).save_pretrained(tmp_path / "off")
    assert read_weights(tmp_path / "off")[0].sliding_window == 0
    used = build("Qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=0)
    used.save_pretrained(tmp_path / "on")
    assert read_weights(tmp_path / "on")[0].sliding_window == 32
    mixed = build("Qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    mixed.save_pretrained(tmp_path / "mixed")
    with pytest.raises(ValueError, match="window"):
        read_weights(tmp_path / "mixed")


def test_other_dtypes_are_refused(tmp_path):
    build("Llama").to(torch.float64).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="F64"):
        read_weights(tmp_path)
    assert Kind.BF16.name == "BF16"
