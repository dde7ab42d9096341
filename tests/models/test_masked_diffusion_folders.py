"""config.json of published diffusion models: which values are read, and which are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from paradecode.core.errors import InvalidModel
from paradecode.models.masked_diffusion import as_causal
from paradecode.models.metadata import Metadata
from paradecode.models.safetensors_dir import read_weights

LLADA = {
    "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 96,
    "vocab_size": 126464, "embedding_size": 126464, "block_type": "llama", "rope": True,
    "multi_query_attention": None,
}  # fmt: skip
SDAR = {"vocab_size": 151936}


@pytest.mark.parametrize(
    ("name", "key", "length"),
    [
        ("SDARForCausalLM", "block_size", 16),
        ("SDARForCausalLM", "block_length", 8),
        ("Fast_dLLM_QwenForCausalLM", "bd_size", 16),
        ("Fast_dLLM_QwenForCausalLM", "other", 32),
    ],
)
def test_block_length_by_its_names(name: str, key: str, length: int) -> None:
    assert as_causal(name, Metadata({**SDAR, key: length}))[2]["block_length"] == length


def test_one_thing_said_in_two_ways() -> None:
    assert as_causal("SDARForCausalLM", Metadata({**SDAR, "block_size": 8, "block_length": 8}))
    with pytest.raises(InvalidModel, match="block_size says 8"):
        as_causal("SDARForCausalLM", Metadata({**SDAR, "block_size": 8, "block_length": 4}))
    with pytest.raises(InvalidModel, match="n_layers says 2"):
        as_causal("LLaDAModelLM", Metadata({**LLADA, "num_hidden_layers": 3}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alibi", True),
        ("block_type", "sequential"),
        ("embedding_size", 126592),
        ("include_qkv_bias", True),
        ("layer_norm_type", "default"),
        ("multi_query_attention", True),
        ("rope", False),
        ("scale_logits", True),
        ("rope", [[]]),
    ],
)
def test_other_models_of_llada_s_code_are_refused(key: str, value: Any) -> None:
    assert as_causal("LLaDAModelLM", Metadata(LLADA))[2]["mask_token"] == 126336
    with pytest.raises(InvalidModel, match=key):
        as_causal("LLaDAModelLM", Metadata({**LLADA, key: value}))


def test_wedlm_is_a_qwen3(tmp_path: Path) -> None:
    settings = {
        "head_dim": 4, "hidden_size": 8, "intermediate_size": 12, "max_position_embeddings": 64,
        "mask_token_id": 5, "qk_norm": True, "attention_bias": False, "num_attention_heads": 2,
        "num_hidden_layers": 0, "vocab_size": 9,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    }  # fmt: skip
    layer = {
        "input_layernorm": (8,), "post_attention_layernorm": (8,), "self_attn.q_proj": (8, 8),
        "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "self_attn.o_proj": (8, 8),
        "self_attn.q_norm": (4,), "self_attn.k_norm": (4,), "mlp.gate_proj": (12, 8),
        "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12),
    }  # fmt: skip
    shapes = {"model.embed_tokens": (9, 8), "model.norm": (8,), "lm_head": (9, 8)}
    shapes |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    save_file(
        {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    read = []
    for name in ("WeDLMForCausalLM", "Qwen3ForCausalLM"):
        config = {**settings, "num_hidden_layers": 1, "architectures": [name]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        read.append(read_weights(tmp_path)[0])
    assert read[0] == replace(read[1], mask_token=5, decoder="wedlm")
    assert read[0].qk_norm
    assert read[0].attention == "causal"
