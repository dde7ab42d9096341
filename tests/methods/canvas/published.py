"""Writes folders with the files, keys, names and ids of published checkpoints; weights are tiny."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models

from paradecode.models.config import ModelConfig
from paradecode.models.gguf_tokenizer import PRE_TOKENIZERS
from paradecode.models.text_stream import byte_characters

D, HEADS, HEAD_DIM, INNER, EXPERT, EXPERTS = 16, 2, 8, 24, 12, 4
QWEN = {
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
    "hidden_size": D, "initializer_range": 0.02, "intermediate_size": INNER,
    "max_position_embeddings": 4096, "max_window_layers": 28, "num_attention_heads": HEADS,
    "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
LLADA = {
    "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "attention_dropout": 0.0,
    "attention_layer_norm": False, "bias_for_layer_norm": False, "block_group_size": 1,
    "block_type": "llama", "d_model": D, "embedding_dropout": 0.0, "embedding_size": 126464,
    "eos_token_id": 126081, "flash_attention": False, "include_bias": False,
    "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta",
    "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms",
    "layer_norm_with_affine": True, "mask_token_id": 126336, "max_sequence_length": 4096,
    "mlp_hidden_size": INNER, "mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None,
    "n_heads": HEADS, "n_kv_heads": HEADS, "n_layers": 1, "pad_token_id": 126081,
    "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-5, "rope": True,
    "rope_full_precision": True, "rope_theta": 500000.0, "scale_logits": False, "use_cache": False,
    "vocab_size": 126464, "weight_tying": False,
}  # fmt: skip
QWEN_EXPERTS = {
    "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": EXPERT,
    "norm_topk_prob": True, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
LING = {
    "attention_dropout": 0.0, "eos_token_id": 156892, "hidden_act": "silu", "hidden_size": D,
    "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": 1,
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "pad_token_id": 156892,
    "rms_norm_eps": 1e-6, "rope_scaling": None, "tie_word_embeddings": False, "vocab_size": 157184,
}  # fmt: skip
SDAR = {
    "attention_bias": False, "debug": False, "ep_size": 1, "fuse_cross_entropy": True,
    "head_dim": HEAD_DIM, "micro_forward": False, "skip_checkpoint": False, **QWEN,
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A checkpoint of the hub.

    Attributes:
        folder: its name there.
        config: the content of config.json.
        layer: what a layer has: ``bias`` and ``norm`` of queries and keys, and its MLP.
        special: control token -> id.
        named: the content of tokenizer_config.json.
        merges: whether the tokenizer is in vocab.json and merges.txt.
    """

    folder: str
    config: Mapping[str, Any]
    layer: str
    special: Mapping[str, int]
    named: Mapping[str, str] = field(default_factory=dict)
    merges: bool = False


_QWEN_TOKENS = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
_DREAM_TOKENS = {**_QWEN_TOKENS, "<|beginoftext|>": 151665, "<|mask|>": 151666}
_LING_TOKENS = {"<|endoftext|>": 156892, "<|mask|>": 156895, "<|role_end|>": 156900}
_ENDS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_MASKED = {**_ENDS, "mask_token": "<|mask|>"}
_LING_NAMED = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def _arch(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [name], "model_type": kind, **more}


def _dream(folder: str) -> Published:
    config = {**QWEN, "vocab_size": 152064, "mask_token_id": 151666, "pad_token_id": 151643}
    named = {"tokenizer_class": "DreamTokenizer", **_MASKED, "eos_token": "<|endoftext|>"}
    return Published(
        folder, {**config, **_arch("DreamModel", "Dream")}, "bias", _DREAM_TOKENS, named, True
    )


def _sdar(folder: str, experts: bool = False) -> Published:
    arch = _arch("SDARMoeForCausalLM", "sdar_moe") if experts else _arch("SDARForCausalLM", "sdar")
    more = QWEN_EXPERTS if experts else {}
    return Published(
        folder, {**SDAR, **more, **arch}, "norm,experts" if experts else "norm",
        {**_QWEN_TOKENS, "<|MASK|>": 151669}, _ENDS,
    )  # fmt: skip


def _llada2(folder: str) -> Published:
    config = {
        **LING, **_arch("LLaDA2MoeModelLM", "llada2_moe"), "num_hidden_layers": 2,
        "first_k_dense_replace": 1, "head_dim": HEAD_DIM, "max_position_embeddings": 32768,
        "moe_intermediate_size": EXPERT, "moe_router_enable_expert_bias": True, "n_group": 2,
        "topk_group": 1, "norm_topk_prob": True, "num_shared_experts": 1, "norm_head": False,
        "partial_rotary_factor": 0.5, "rope_theta": 600000, "routed_scaling_factor": 2.5,
        "rotary_dim": HEAD_DIM // 2, "router_dtype": "fp32", "score_function": "sigmoid",
        "use_bias": False, "use_qk_norm": True, "use_qkv_bias": False,
    }  # fmt: skip
    return Published(folder, config, "llada2", _LING_TOKENS, _LING_NAMED)


def _llada_moe() -> Published:
    config = {
        **LING, **_arch("LLaDAMoEModelLM", "llada"), "attention_bias": False, "clip_qkv": None,
        "dense_intermediate_size": INNER, "expert_intermediate_size": EXPERT,
        "max_position_embeddings": 8192, "moe_layer_freq": [1], "norm_topk_prob": None,
        "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
        "num_hidden_layers": 1, "num_key_value_heads": HEADS, "partial_rotary_factor": 1,
        "qk_layernorm": True, "rope_theta": 50000, "routed_scaling_factor": 1,
        "router_num_group": None, "router_topk_group": None,
        "shared_expert_intermediate_size": None,
    }  # fmt: skip
    config.pop("intermediate_size")
    return Published("LLaDA-MoE-7B-A1B-Instruct", config, "norm,experts", _LING_TOKENS, _LING_NAMED)


def _a2d(folder: str) -> Published:
    config = {**QWEN, **_arch("A2DQwen3LMHeadModel", "a2d-qwen3"), "head_dim": HEAD_DIM}
    config |= {"tie_word_embeddings": True, "attention_bias": False}
    return Published(folder, config, "norm,tied", {**_QWEN_TOKENS, "<|mask|>": 151669}, _MASKED)


def _wedlm(folder: str, qwen3: bool) -> Published:
    config = {
        **QWEN, **_arch("WeDLMForCausalLM", "wedlm"), "attention_bias": not qwen3,
        "head_dim": HEAD_DIM, "qk_norm": qwen3, "mask_token_id": 151665,
    }  # fmt: skip
    return Published(folder, config, "norm" if qwen3 else "bias", _QWEN_TOKENS, _ENDS)


def _llada(folder: str) -> Published:
    ids = {
        "<|startoftext|>": 126080, "<|endoftext|>": 126081, "<|mdm_mask|>": 126336,
        "<|start_header_id|>": 126346, "<|end_header_id|>": 126347, "<|eot_id|>": 126348,
    }  # fmt: skip
    named = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
             "pad_token": "<|endoftext|>"}  # fmt: skip
    return Published(folder, {**LLADA, "architectures": ["LLaDAModelLM"]}, "llada", ids, named)


CHECKPOINTS = {
    one.folder: one
    for one in (
        _llada("LLaDA-8B-Instruct"), _llada("LLaDA-1.5"), _dream("Dream-v0-Instruct-7B"),
        _dream("DiffuCoder-7B-cpGRPO"), _sdar("SDAR-1.7B-Chat"), _sdar("SDAR-8B-Chat-b16"),
        _sdar("SDAR-4B-Chat-b64"), _sdar("SDAR-30B-A3B-Chat", experts=True), _llada_moe(),
        _llada2("LLaDA2.0-mini"), _llada2("LLaDA2.1-mini"), _wedlm("WeDLM-8B-Instruct", True),
        _wedlm("WeDLM-7B-Instruct", False), _a2d("Qwen3-0.6B-diffusion-mdlm-v0.1"),
        _a2d("Qwen3-0.6B-diffusion-bd3lm-v0.1"),
        Published(
            "Fast_dLLM_v2_1.5B",
            {**QWEN, **_arch("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen"), "bd_size": 32,
             "tie_word_embeddings": True},
            "bias,tied", {**_QWEN_TOKENS, "|<MASK>|": 151665}, _ENDS,
        ),
    )
}  # fmt: skip


def write_config(folder: Path, name: str, c: ModelConfig, **changes: Any) -> None:
    """Write the checkpoint's config.json, with the sizes and ids of a tiny model."""
    known = CHECKPOINTS[name].config
    sizes = {
        "hidden_size d_model": c.hidden_size, "vocab_size embedding_size": c.vocab_size,
        "max_position_embeddings max_sequence_length": c.context_length, "head_dim": c.head_dim,
        "intermediate_size dense_intermediate_size mlp_hidden_size": c.intermediate_size,
        "num_attention_heads n_heads": c.heads, "num_key_value_heads n_kv_heads": c.kv_heads,
        "num_hidden_layers n_layers": c.layers, "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope.theta, "eos_token_id bos_token_id pad_token_id": 0,
    }  # fmt: skip
    if c.mixture is not None:
        m = c.mixture
        sizes |= {
            "num_experts": m.experts, "num_experts_per_tok": m.chosen, "n_group": m.groups,
            "expert_intermediate_size moe_intermediate_size": m.expert_size,
            "shared_expert_intermediate_size": m.shared_size, "topk_group": m.chosen_groups,
            "routed_scaling_factor": m.scale,
        }  # fmt: skip
    own = {key: size for keys, size in sizes.items() for key in keys.split() if key in known}
    config = {**known, **own, "mask_token_id": c.mask_token, **changes}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def write_published(name: str, place: Path, **changes: Any) -> Path:
    """Write the checkpoint as a folder of its published name in ``place``; return the folder."""
    one, folder = CHECKPOINTS[name], place / name
    folder.mkdir(parents=True)
    config = {**one.config, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = _shapes(one, int(config["vocab_size"]))
    random = np.random.Generator(np.random.PCG64(sum(map(ord, one.folder))))
    tensors = {
        stored: np.ones(shape, np.float16)
        if "norm" in stored or "ln_f" in stored
        else (random.standard_normal(shape, np.float32) * 1.5 / shape[-1] ** 0.5).astype("f2")
        for stored, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    _write_tokenizer(one, folder)
    return folder


def _shapes(one: Published, vocab: int) -> dict[str, tuple[int, ...]]:
    """Return stored name -> shape."""
    queries, keys = HEADS * HEAD_DIM, HEAD_DIM * (HEADS if "LLaDA-MoE" in one.folder else 1)
    if one.layer == "llada":
        blocks = "model.transformer.blocks.0."
        square = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), (queries, D))
        own = {"attn_norm": (D,), "ff_norm": (D,), **square, "ff_proj": (INNER, D),
               "up_proj": (INNER, D), "ff_out": (D, INNER)}  # fmt: skip
        ends = {"wte": (vocab, D), "ln_f": (D,), "ff_out": (vocab, D)}
        layers = {f"{blocks}{part}.weight": shape for part, shape in own.items()}
        return layers | {f"model.transformer.{part}.weight": shape for part, shape in ends.items()}
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (D,)}
    second = one.layer == "llada2"
    shapes["model.word_embeddings.weight" if second else "model.embed_tokens.weight"] = (vocab, D)
    if "tied" not in one.layer:
        shapes["lm_head.weight"] = (vocab, D)
    for index in range(2 if second else 1):
        layer: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("input_layernorm.weight", "post_attention_layernorm.weight"), (D,)
        )
        if second:
            layer |= {
                "attention.query_key_value.weight": (queries + 2 * keys, D),
                "attention.dense.weight": (D, queries),
                "attention.query_layernorm.weight": (HEAD_DIM,),
                "attention.key_layernorm.weight": (HEAD_DIM,),
            }
        else:
            rows = {"q": queries, "k": keys, "v": keys}
            layer |= {f"self_attn.{part}_proj.weight": (size, D) for part, size in rows.items()}
            layer["self_attn.o_proj.weight"] = (D, queries)
            if "bias" in one.layer:
                layer |= {f"self_attn.{part}_proj.bias": (size,) for part, size in rows.items()}
            if "norm" in one.layer:
                layer |= {f"self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
        inner = {"mlp": INNER}
        if "experts" in one.layer or (second and index):
            layer["mlp.gate.weight"] = (EXPERTS, D)
            inner = {f"mlp.experts.{expert}": EXPERT for expert in range(EXPERTS)}
            if second:
                layer["mlp.gate.expert_bias"] = (EXPERTS,)
                inner["mlp.shared_experts"] = EXPERT
        for part, size in inner.items():
            layer |= {f"{part}.{way}_proj.weight": (size, D) for way in ("gate", "up")}
            layer[f"{part}.down_proj.weight"] = (D, size)
        shapes |= {f"model.layers.{index}.{part}": shape for part, shape in layer.items()}
    return shapes


def _write_tokenizer(one: Published, folder: Path) -> None:
    letters = {letter: index for index, letter in enumerate(byte_characters())}
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the")]
    letters |= {a + b: len(letters) + at for at, (a, b) in enumerate(pairs)}
    settings: dict[str, Any] = {**one.named, "added_tokens_decoder": {
        str(index): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                     "single_word": False, "special": True}
        for text, index in one.special.items()
    }}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(json.dumps(one.named))
    if one.merges:
        (folder / "vocab.json").write_text(json.dumps(letters), "utf-8")
        lines = ["#version: 0.2", *(f"{a} {b}" for a, b in pairs)]
        (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / "added_tokens.json").write_text(json.dumps(one.special))
        return
    tokenizer = Tokenizer(models.BPE(letters | dict(one.special), pairs))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS["qwen2"]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(one.special))
    tokenizer.save(str(folder / "tokenizer.json"))
