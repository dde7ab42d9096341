"""Exact methods give plain decoding's tokens on every kind of layer, with drafts of both fates."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.methods.specs import methods, parse
from paradecode.models.config import ModelConfig
from paradecode.models.families import BY_NAME
from paradecode.models.metadata import Metadata
from paradecode.models.tiny import random_weights
from paradecode.models.weights import Weights
from paradecode.testing.cases import repetitive
from paradecode.testing.conformance import ConformanceCase
from paradecode.testing.harness import Bench, ConformanceFailure, Run, Subject
from paradecode.testing.machines import CONTEXT, DRAFT, Kind, blurred

_SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "eos_token_id": 0,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "window and caps": ("gemma2", {
        "sliding_window": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0,
    }),
    "parallel with LayerNorm": ("gptneox", {
        "use_parallel_residual": True, "num_key_value_heads": 4,
    }),
    "parallel, some without positions": ("cohere2", {"sliding_window": 8, "logit_scale": 1.0}),
    "some without positions": ("smollm3", {}),
    "experts and sinks": ("gpt-oss", {
        "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "attention_bias": True, "tie_word_embeddings": False,
    }),
    "ALiBi": ("bloom", {"num_key_value_heads": 4}),
    "convolutions": ("lfm2", {
        "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False,
    }),
    "Mamba-2": ("mamba2", {
        "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "num_hidden_layers": 2,
    }),
    "Mamba-2 and attention": ("granitehybrid", {
        "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 16,
        "mamba_d_state": 8, "mamba_n_groups": 2, "shared_intermediate_size": 96,
    }),
    "Mamba-1": ("mamba", {
        "expand": 1, "intermediate_size": 64, "state_size": 4, "num_hidden_layers": 2,
    }),
    "RG-LRU and a window": ("recurrentgemma", {"attention_window_size": 8}),
    "Mamba-2 beside attention": ("falcon-h1", {
        "mamba_n_heads": 4, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_n_groups": 2,
        "num_hidden_layers": 2, "ssm_multipliers": [0.8, 1.2, 0.7, 1.6, 0.5],
    }),
    "layers of one part": ("nemotron_h", {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2,
        "n_routed_experts": 4, "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
    }),
    "gated delta": ("qwen3next", {
        "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16,
        "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    }),
}  # fmt: skip
"""Kind of layers -> the family that has them, and what its config.json says beside the sizes."""
EXACT = [
    name
    for name, method in sorted(methods().items())
    if method.guarantee == "exact" and method.training == "none" and name != "greedy"
    and method.family == "autoregressive" and method.build.__module__.startswith("paradecode.")
]  # fmt: skip
CHOOSE = ("del", "s2d", "swift")
"""Methods that choose the rows that they see, which layers with a state refuse."""
FEW = ("prompt-lookup", "draft-model", "lookahead", "del")
"""Methods of the first tier: a path that is looked up, a tree of a model, n-grams of the target's
guesses, and its own first layers."""


@cache
def model(name: str) -> tuple[ModelConfig, Weights]:
    family, facts = LAYERS[name]
    fields = BY_NAME[family].fields(Metadata({**BY_NAME[family].defaults, **_SIZES, **facts}))
    config = ModelConfig(name=name, architecture=family, **fields | {"eos_tokens": (0,)})
    return config, random_weights(config)


def torch_backends(kind: Kind) -> Mapping[str, Backend]:
    """Open a model, and a draft model that often agrees with it, in an exact arithmetic."""
    made = {TARGET: model(kind.name), DRAFT: blurred(*model(kind.name))}
    return {
        name: open_backend("torch", *each, dtype="fp64", threads=1) for name, each in made.items()
    }


def native_backends(kind: Kind) -> Mapping[str, Backend]:
    made = {TARGET: model(kind.name), DRAFT: blurred(*model(kind.name))}
    return {
        name: open_backend("native", *each, dtype="q4", threads=2) for name, each in made.items()
    }


def exact_backends(kind: Kind) -> Mapping[str, Backend]:
    """Open models in an exact arithmetic; the core, where PyTorch has loops over rows."""
    states = model(kind.name)[0].keeps_states
    return native_backends(kind) if states else torch_backends(kind)


def subject(name: str) -> Subject:
    return Subject(name, parse(name))


def test_the_models_have_these_layers() -> None:
    def parts(name: str) -> list[Any]:
        return [part for _, part in model(name)[0].attentions()]

    capped = model("window and caps")[0]
    assert {part.window for part in parts("window and caps")} == {0, 8}
    assert capped.softcap == 8.0
    assert {part.softcap for part in parts("window and caps")} == {3.0}
    for name in ("parallel with LayerNorm", "parallel, some without positions"):
        config = model(name)[0]
        assert config.norm_kind == "layer"
        assert all(layer.beside for layer in config.stack)
    for name in ("parallel, some without positions", "some without positions"):
        assert {part.rope is None for part in parts(name)} == {True, False}
    assert model("experts and sinks")[0].mixture
    assert all(part.sinks for part in parts("experts and sinks"))
    assert all(part.alibi and part.rope is None for part in parts("ALiBi"))


@pytest.mark.parametrize("layers", LAYERS)
def test_drafts_are_accepted_and_rejected(layers: str) -> None:
    """Texts are greedy and sampled; the run compares every token with plain decoding."""
    bench, counts = Bench(Kind(layers), native_backends), []
    for name in FEW[: 3 if model(layers)[0].keeps_states else None]:
        for sequence in repetitive(Run("repetitive-texts", subject(name), bench)):
            counts.append((sequence.stats.drafted, sequence.stats.accepted))
    accepted = sum(count for _, count in counts)
    assert accepted > 20
    assert sum(count for count, _ in counts) - accepted > 20


@pytest.mark.parametrize("case", ["mixed-methods", "chunks-of-3"])
@pytest.mark.parametrize("layers", LAYERS)
def test_methods_in_the_core(layers: str, case: str) -> None:
    ConformanceCase(case, Kind(layers), subject("draft-model"), native_backends).run()


@pytest.mark.wide
@pytest.mark.parametrize("case", ["repetitive-texts", "batch-of-16"])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("layers", LAYERS)
def test_every_exact_method(layers: str, name: str, case: str) -> None:
    asked = ConformanceCase(case, Kind(layers), subject(name), exact_backends)
    try:
        asked.run()
    except ConformanceFailure as error:
        if name not in CHOOSE or "layers with a state" not in str(error):
            raise
