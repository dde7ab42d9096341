"""Tiny random models of every family, as transformers saves them and as llama.cpp reads them."""

from __future__ import annotations

import json
import math
import re
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf_writing import add_tokenizer

from paradecode.backends.interface import (
    PAGE,
    Backend,
    KeepsStates,
    Span,
    StatePages,
    WindowPages,
)
from paradecode.models.config import ModelConfig
from paradecode.models.families import BY_NAME, Family
from paradecode.models.families.family import GGUF_NAMES, GGUF_OUTSIDE, half_split
from paradecode.models.families.gguf import FACTS
from paradecode.models.metadata import Metadata

VOCABULARY, WINDOW = 263, 16
TOKENS = np.random.default_rng(1).integers(3, 250, 61).astype(np.int32)
"""A text that is longer than every window, and whose length is odd."""


@dataclass(frozen=True)
class Case:
    """A tiny model of a family.

    Attributes:
        folder: what transformers' configuration has beside ``SIZES``; None: no such class.
        gguf: facts of the GGUF file beside ``SIZES``, by the keys of config.json; None: no GGUF.
        name: transformers' name, before ``Config``.
        tied: whether the LM head is the embedding in the GGUF file.
        biased: whether the GGUF file has biases.
        rotary: rotated numbers of a head in the GGUF file; 0: all.
        gelu: whether llama.cpp computes GELU, by a table of 16-bit numbers.
    """

    name: str
    folder: dict[str, Any] | None = field(default_factory=dict)
    gguf: dict[str, Any] | None = field(default_factory=dict)
    tied: bool = False
    biased: bool = False
    rotary: int = 0
    gelu: bool = False


SIZES = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 512,
}  # fmt: skip
_GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}
_SLIDING = {"sliding_window": WINDOW}
_HALF = {"rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
}}  # fmt: skip
_YARN = {"rope_parameters": {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0,
}}  # fmt: skip
_FACTORS = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4}
_CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
_HEAD = {"head_dim": 24}
_STATES = {"expand": 2, "chunk_size": 16}
_DELTA = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"] * 3,
}  # fmt: skip
CASES = {
    "gemma": Case("Gemma", _HEAD, _HEAD, tied=True, gelu=True),
    "gemma2": Case(
        "Gemma2", {**_HEAD, **_SLIDING, **_CAPS, "query_pre_attn_scalar": 20},
        {**_HEAD, **_SLIDING, **_CAPS}, tied=True, gelu=True,
    ),
    "gemma3": Case(
        "Gemma3Text", {**_HEAD, **_SLIDING, "query_pre_attn_scalar": 20}, {**_HEAD, **_SLIDING},
        tied=True, gelu=True,
    ),
    "gemma4": Case(
        "Gemma4Text",
        {**_HEAD, **_SLIDING, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
         "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
         "use_double_wide_mlp": True, "final_logit_softcapping": 5.0,
         "layer_types": ["sliding_attention", "full_attention"] * 3},
        None, tied=True, gelu=True,
    ),
    "smollm3": Case("SmolLM3", tied=True),
    "granite": Case("Granite", *[{**_FACTORS, "attention_multiplier": 0.2}] * 2),
    "olmo2": Case("Olmo2"),
    "exaone4": Case("Exaone4", {**_SLIDING, "sliding_window_pattern": 4}),
    "ernie4_5": Case("Ernie4_5", {"head_dim": 16, "use_bias": False}, tied=True),
    "hunyuan": Case("HunYuanDenseV1", _HEAD, _HEAD),
    "ministral3": Case("Ministral3", {"head_dim": 16, **_YARN}, {"head_dim": 16}),
    "internlm2": Case("", None),
    "minicpm": Case("", None, _FACTORS),
    "glm4": Case("Glm4", {**_HEAD, **_HALF, "attention_bias": True}, {"attention_bias": True},
                 rotary=8),
    "phi3": Case("Phi3"),
    "gpt2": Case("GPT2", _GPT, {"num_key_value_heads": 4}, tied=True, biased=True, gelu=True),
    "gptneox": Case("GPTNeoX", _HALF, {"num_key_value_heads": 4, "use_parallel_residual": True},
                    biased=True, rotary=8, gelu=True),
    "gptj": Case("GPTJ", {**_GPT, "rotary_dim": 8}, None),
    "codegen": Case("CodeGen", {**_GPT, "rotary_dim": 8}, None),
    "bloom": Case("Bloom", {"hidden_size": 66, "n_layer": 3, "n_head": 6},
                  {"num_key_value_heads": 4}, tied=True, biased=True, gelu=True),
    "starcoder2": Case("Starcoder2", _SLIDING, tied=True, biased=True, gelu=True),
    "stablelm": Case("StableLm", {"use_qkv_bias": True}, {"use_qkv_bias": True}, rotary=4),
    "cohere": Case("Cohere", gguf={"logit_scale": 0.2}, tied=True),
    "step3": Case("", None, None),
    "mixtral": Case("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}, None),
    "gpt-oss": Case(
        "GptOss",
        {**_SLIDING, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2},
        {**_SLIDING, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 80, "attention_bias": True},
        biased=True,
    ),
    "qwen3next": Case(
        "Qwen3Next",
        {**_DELTA, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
        None,
    ),
    "qwen35": Case("Qwen3_5", _DELTA, None),
    "lfm2": Case(
        "Lfm2", {"layer_types": ["conv", "full_attention"] * 3, "block_auto_adjust_ff_dim": False},
        None,
    ),
    "mamba2": Case(
        "Mamba2", {**_STATES, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16,
                   "state_size": 8, "n_groups": 2, "conv_kernel": 4,
                   "time_step_limit": [0.3, 0.9]}, None,
    ),
    "bamba": Case(
        "Bamba",
        {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "mamba_n_heads": 8,
         "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16},
        None,
    ),
    "granitehybrid": Case(
        "GraniteMoeHybrid",
        {**_FACTORS, "attention_multiplier": 0.2, "layer_types": ["mamba", "attention"] * 3,
         "num_local_experts": 5, "shared_intermediate_size": 40, "position_embedding_type": "rope",
         "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2},
        None,
    ),
    "falcon-h1": Case(
        "FalconH1",
        {"num_hidden_layers": 3, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16,
         "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16, "mamba_rms_norm": True,
         "time_step_limit": [0.1, 0.9], "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5,
         "mlp_multipliers": [0.7, 1.4], "key_multiplier": 0.6, "attention_in_multiplier": 1.5,
         "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.9,
         "ssm_multipliers": [0.8, 1.2, 0.7, 1.6, 0.5], "mlp_bias": True, "projectors_bias": True},
        None,
    ),
    "nemotron_h": Case(
        "NemotronH",
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "mlp"],
         "head_dim": 24, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8,
         "n_groups": 2, "chunk_size": 16, "time_step_min": 0.4, "n_routed_experts": 6,
         "n_group": 2, "topk_group": 1, "moe_intermediate_size": 24,
         "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5}, None,
    ),
    "olmo_hybrid": Case(
        "OlmoHybrid",
        {"layer_types": ["linear_attention", "full_attention"] * 3, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 16},
        None,
    ),
    "gla": Case("", None, None),
    "cohere2": Case("Cohere2", _SLIDING, {**_SLIDING, "logit_scale": 0.2}, tied=True),
}  # fmt: skip
"""Family -> its tiny model. Windows are shorter than the text, and groups have two heads."""
FORMS = {
    "falcon-h1 as released": replace(
        CASES["falcon-h1"], folder=CASES["falcon-h1"].folder | {"mamba_rms_norm": False}
    ),
    "granitehybrid without experts": replace(
        CASES["granitehybrid"],
        folder=CASES["granitehybrid"].folder
        | {"num_local_experts": 0, "shared_intermediate_size": 80},
    ),
}
"""Other forms of some families' folders."""


def logits_of(backend: Backend, chunk: int = 1 << 20) -> np.ndarray:
    """Return the logits of all rows of ``TOKENS``, fed in chunks."""
    pages = -(-len(TOKENS) // PAGE)
    backend.reserve(pages)
    if backend.config.keeps_states:
        assert isinstance(backend, KeepsStates)
        backend.reserve_states(pages, pages)
    parts, base = [], 0
    for start in range(0, len(TOKENS), chunk):
        at = np.arange(start, min(start + chunk, len(TOKENS)), dtype=np.int32)
        span = Span(
            pages=np.arange(pages, dtype=np.int32)[::-1], tokens=TOKENS[at], positions=at,
            slots=at, context=start, logits=np.arange(len(at), dtype=np.int32),
            states=states_of(backend.config, base, end := start + len(at)),
        )  # fmt: skip
        base = end // PAGE
        logits = backend.forward([span])[0].logits
        parts.append(logits.gather(np.tile(np.arange(VOCABULARY), (len(at), 1))))
    return np.concatenate(parts)


def states_of(config: ModelConfig, base: int, end: int) -> StatePages | None:
    """Return where rows up to ``end`` read the state of page ``base`` and write that of the end."""
    if not config.keeps_states:
        return None
    records = WindowPages(base, np.arange(base, -(-end // PAGE), dtype=np.int32))
    page = end // PAGE
    return StatePages(records, base, base or -1, ((page, page),) if page > base else ())


# Folders.


def save_folder(case: Case, folder: Path) -> Any:
    """Save a random model with transformers, and return it."""
    import transformers

    named: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    if case.name not in ("GPT2", "GPTJ", "CodeGen", "Bloom"):
        named |= SIZES | {"pad_token_id": 0}
    if case.name == "GPTNeoX":
        del named["num_key_value_heads"]
    text = "Text" if case.name == "Qwen3_5" else ""
    config = getattr(transformers, f"{case.name}{text}Config")(**named | (case.folder or {}))
    config._attn_implementation = "eager"
    kind = {
        "GPT2": "GPT2LMHeadModel",
        "Gemma3Text": "Gemma3ForCausalLM",
        "Gemma4Text": "Gemma4ForCausalLM",
    }.get(case.name)
    model = getattr(transformers, kind or f"{case.name}ForCausalLM")(config)
    return _saved(model, folder, gains=not case.name.startswith(("Gemma", "Qwen3")))


def save_seeing(name: str, folder: Path) -> Any:
    """Save a random model that also sees pictures; its text part has the sizes of ``SIZES``."""
    import transformers

    text = {**SIZES, "vocab_size": VOCABULARY, "head_dim": 24, "bos_token_id": 1,
            "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
    sees = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    marks = {"boi_token_index": 261, "eoi_token_index": 262, "image_token_index": 260}
    if name == "Gemma3":
        config = transformers.Gemma3Config(
            text_config=transformers.Gemma3TextConfig(**text, sliding_window=WINDOW),
            vision_config=transformers.SiglipVisionConfig(**sees), mm_tokens_per_image=4, **marks,
        )  # fmt: skip
    elif name == "Gemma4":
        config = transformers.Gemma4Config(
            text_config=transformers.Gemma4TextConfig(
                **text, sliding_window=WINDOW, global_head_dim=32, hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=VOCABULARY,
            ),
            vision_config=None, audio_config=None, image_token_id=260, boi_token_id=261,
            eoi_token_id=262,
        )  # fmt: skip
    elif name == "Qwen3_5":
        short = text | _DELTA | {"num_hidden_layers": 2, "layer_types": _DELTA["layer_types"][:2]}
        vision = transformers.models.qwen3_5.Qwen3_5VisionConfig(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64
        )
        config = transformers.Qwen3_5Config(
            text_config=transformers.Qwen3_5TextConfig(**short), vision_config=vision,
            image_token_id=260, video_token_id=259, vision_start_token_id=258,
            vision_end_token_id=257,
        )  # fmt: skip
    else:
        config = transformers.Mistral3Config(
            text_config=transformers.Ministral3Config(**text),
            image_token_index=260,
            vision_config=transformers.PixtralVisionConfig(**sees, head_dim=8),
        )
    config.text_config._attn_implementation = "eager"
    return _saved(
        getattr(transformers, f"{name}ForConditionalGeneration")(config), folder, name != "Qwen3_5"
    )


def _saved(model: Any, folder: Path, gains: bool) -> Any:
    """Save a model with random weights, and return it; ``gains``: those of norms are near 1."""
    import torch

    model = model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
                weight.copy_(0.3 * noise + gains * norm)
            else:
                weight.copy_(noise * 1.5 / math.sqrt(weight.shape[-1]))
    model.save_pretrained(folder)
    return model


# GGUF.


def write_family(path: Path, name: str) -> ModelConfig:
    """Write a random model in the form of llama.cpp's converter, and return its configuration."""
    case, family = CASES[name], BY_NAME[name]
    assert case.gguf is not None
    facts = {"rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "rope_theta": 1e4} | SIZES | case.gguf
    size = facts.setdefault("head_dim", facts["hidden_size"] // facts["num_attention_heads"])
    values = {
        **{k: v for k, v in family.defaults.items() if k in ACTIVATION_KEYS},
        **family.gguf_defaults, **facts, "vocab_size": VOCABULARY,
        "tie_word_embeddings": case.tied, "use_bias": case.biased, "mlp_bias": case.biased,
        "attention_bias": bool(facts.pop("attention_bias", False)) or case.biased,
        "partial_rotary_factor": (case.rotary or size) / size,
    }  # fmt: skip
    facts.pop("use_qkv_bias", None)
    config = ModelConfig(name="x", architecture=name, **family.fields(Metadata(values)))
    writer = GGUFWriter(path, family.gguf[0])
    keys = {own: key for key, own in {**FACTS, **family.gguf_facts}.items()}
    for fact, value in facts.items():
        add = {float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32}
        add[type(value)](f"{family.gguf[0]}.{keys[fact]}", value)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(case.rotary or size)
    add_tokenizer(writer, VOCABULARY)
    _finish(writer, _stored(family, config, random_tensors(config)))
    return config


def write_gemma4(path: Path, gain: float) -> None:
    """Write a random Gemma 4, whose facts GGUF gives for each layer.

    Args:
        gain: factor of the gains behind MLPs and token inputs. llama.cpp's GELU is a table, and
            sharp attention multiplies its errors.
    """
    family, count = BY_NAME["gemma4"], 6
    near, far = "sliding_attention", "full_attention"
    values = SIZES | {
        "vocab_size": VOCABULARY, "head_dim": 16, "global_head_dim": 32,
        "num_global_key_value_heads": 1, "layer_types": [near, far] * 3, "sliding_window": WINDOW,
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "final_logit_softcapping": 5.0, "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }  # fmt: skip
    config = ModelConfig(name="x", architecture="gemma4", **family.fields(Metadata(values)))
    writer = GGUFWriter(path, "gemma4")
    whole = {
        "embedding_length": 64, "block_count": count, "context_length": 512,
        "embedding_length_per_layer_input": 8, "attention.head_count": 4,
        "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
        "attention.value_length_swa": 16, "attention.sliding_window": WINDOW,
        "attention.shared_kv_layers": 2, "rope.dimension_count": 32, "rope.dimension_count_swa": 16,
    }  # fmt: skip
    for key, value in whole.items():
        writer.add_uint32(f"gemma4.{key}", value)
    for key, number in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e6),
                        ("rope.freq_base_swa", 1e4), ("final_logit_softcapping", 5.0)):  # fmt: skip
        writer.add_float32(f"gemma4.{key}", number)
    writer.add_array("gemma4.attention.head_count_kv", [2, 1] * 3)
    writer.add_array("gemma4.feed_forward_length", [80] * 4 + [160] * 2)
    writer.add_array("gemma4.attention.sliding_window_pattern", [True, False] * 3)
    add_tokenizer(writer, VOCABULARY)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 4 + [1e30] * 12, np.float32))
    tensors = random_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith(("after_mlp", "after_input")):
            tensors[name] = tensor * np.float32(gain)
        elif name.endswith(".scale"):
            tensors[name] = np.full(1, 0.9, np.float32)
    _finish(writer, _stored(family, config, tensors))


def _finish(writer: GGUFWriter, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    for stored, tensor in tensors:
        writer.add_tensor(stored, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")
_JOINED = {"gpt2": ("q+k+v",), "gptneox": ("q+k+v",), "bloom": ("q+k+v",),
           "phi3": ("q+k+v", "gate+up"), "glm4": ("gate+up",)}  # fmt: skip
"""Family -> what llama.cpp's converter writes as one tensor."""


def random_tensors(config: ModelConfig) -> dict[str, np.ndarray]:
    """Return random weights by our names, with gains near 1."""
    random, tensors = np.random.default_rng(0), dict[str, np.ndarray]()
    for name, shape in config.tensors().items():
        noise = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            gain = name.endswith("norm") or ".after_" in name
            tensors[name] = np.float32(0.2) * noise + gain
        else:
            tensors[name] = noise * np.float32(0.7 / math.sqrt(shape[-1]))
    return tensors


def _stored(
    family: Family, config: ModelConfig, tensors: dict[str, np.ndarray]
) -> Iterable[tuple[str, np.ndarray]]:
    """Yield tensors with their names in the file."""
    for layer, attention in config.attentions() if family.gguf_interleaved else ():
        if attention.rope is None:
            continue
        for part, heads in (("q", attention.heads), ("k", attention.kv_heads)):
            order = np.argsort(half_split(heads, attention.head_dim, attention.rope.dim))
            for name in (f"layers.{layer}.{part}", f"layers.{layer}.{part}.bias"):
                if name in tensors:
                    tensors[name] = tensors[name][order]
    inside = {own: stored for stored, own in {**GGUF_NAMES, **family.gguf_names}.items()}
    outside = {own: stored for stored, own in GGUF_OUTSIDE.items()}
    joined = {each.split("+")[0]: each for each in _JOINED.get(family.name, ())}
    later = {part for each in joined.values() for part in each.split("+")[1:]}
    tensors = together(tensors)
    for name, tensor in tensors.items():
        base = name.removesuffix(".bias")
        end = ".bias" if base != name else ""
        kind = end or ".weight"
        if not base.startswith("layers."):
            yield outside[base] + kind, tensor
            continue
        _, layer, part = base.split(".", 2)
        if part in later:
            continue
        whole = joined.get(part, part)
        rows = [tensors[f"layers.{layer}.{each}{end}"] for each in whole.split("+")]
        yield f"blk.{layer}.{inside[whole]}{kind}", np.concatenate(rows)


def together(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with those of all experts of a layer in one."""
    made, experts = dict[str, np.ndarray](), dict[str, list[np.ndarray]]()
    for name, tensor in tensors.items():
        whole = re.sub(r"experts\.\d+\.", "experts.", name).replace(".logit_bias", ".bias")
        if whole == name or "experts." not in name:
            made[whole] = tensor
        else:
            experts.setdefault(whole, []).append(tensor)
    return made | {name: np.stack(every) for name, every in experts.items()}


class LlamaCppLogits:
    """A model in llama.cpp, with keys and values in 32 bits and without flash attention."""

    def __init__(self, path: Path) -> None:
        x = pytest.importorskip("xllamacpp")
        params = x.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 512, 1, False, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
        kind = x.llama_flash_attn_type
        params.flash_attn_type = kind.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = x.Server(params)

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Return those of all tokens after a prompt, float64 [V]."""
        out = np.full(VOCABULARY, np.nan)
        for seed in range(20):  # It gives none if it happens to draw the end of the text.
            body = {
                "prompt": tokens.tolist(), "n_predict": 1, "n_probs": VOCABULARY, "seed": seed,
                "temperature": 1.0, "samplers": [], "cache_prompt": False,
            }  # fmt: skip
            request = urllib.request.Request(
                self._server.listening_address + "/completion", json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request) as answer:
                found = json.load(answer).get("completion_probabilities")
            if found:
                for each in found[0]["top_logprobs"]:
                    out[each["id"]] = each["logprob"]
                break
        assert not np.isnan(out).any()
        return out
