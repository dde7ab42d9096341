"""Tiny models of many shapes in the native core, with pages already reserved."""

from dataclasses import replace

from naive import random_weights

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.mixture import Mixture
from paradecode.models.parts import Attention, Feed, Layer, TokenInput

BASE = uniform(
    name="tiny", architecture="llama", vocab_size=100, hidden_size=64, layers=3, heads=4,
    kv_heads=2, head_dim=16, intermediate_size=96, context_length=512, rope=Rope(dim=16),
)  # fmt: skip

CONFIGS = {
    "grouped": BASE,
    "multi_head": BASE.altered(kv_heads=4, tied_head=True),
    "multi_query": BASE.altered(heads=8, kv_heads=1, head_dim=8, rope=Rope(dim=8)),
    "biases": BASE.altered(qkv_bias=True, output_bias=True, mlp_bias=True),
    "qk_norm": BASE.altered(qk_norm=True, head_dim=32, rope=Rope(dim=32)),
    "partial": BASE.altered(head_dim=24, rope=Rope(dim=12), qkv_bias=True),
    "odd_sizes": BASE.altered(
        vocab_size=77, hidden_size=52, intermediate_size=83, heads=6, kv_heads=3, head_dim=40,
        rope=Rope(dim=40), qkv_bias=True,
    ),
    "wide_heads": BASE.altered(heads=14, kv_heads=2, head_dim=128, rope=Rope(dim=128), layers=1),
    "widest_heads": BASE.altered(heads=2, kv_heads=1, head_dim=256, rope=Rope(dim=256), layers=1),
    "linear": BASE.altered(rope=Rope(dim=16, scaling="linear", factor=4.0)),
    "llama3": BASE.altered(
                rope=Rope(
            theta=500.0, dim=16, scaling="llama3", factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_context=64,
        ),
    ),
    "yarn": BASE.altered(
                rope=Rope(
            dim=16, scaling="yarn", factor=4.0, original_context=64, attention_factor=1.1386,
        ),
    ),
    "window": BASE.altered(sliding_window=7),
}  # fmt: skip

A = Attention(4, 2, 16, rope=Rope(dim=16))
F = Feed(96)
LOCAL = replace(A, window=6, rope=Rope(theta=500.0, dim=16))
GEMMA = replace(A, norm="both", qk_norm="head", scale=0.2)
GELU = Feed(83, norm="both", activation="gelu_tanh")
PLAIN = Feed(83, gated=False, bias=True, activation="gelu")
ODD = Attention(6, 3, 12)
BIASED = replace(A, bias=True, output_bias=True)
OSS = Mixture(8, 3, 40, normalised=True, logit_bias=True, expert_bias=True)
CLAMPED = Feed(0, mixture=OSS, activation="swiglu_oai")
FAR = replace(GEMMA, kv_heads=1, head_dim=24, rope=Rope(dim=24, still=6))


def stacked(*layers: Layer, hidden: int = 52, **facts: object) -> ModelConfig:
    return ModelConfig("tiny", "parts", 77, hidden, layers, context_length=512, **facts)  # type: ignore[arg-type]


PARTS = {
    "caps": stacked(
        Layer((replace(GEMMA, softcap=3.0, window=6), GELU)),
        Layer((replace(GEMMA, softcap=3.0), GELU)),
        embed_factor=52**0.5, softcap=20.0, tied_head=True,
    ),
    "local_and_nowhere": stacked(
        Layer((replace(GEMMA, window=6, rope=LOCAL.rope), GELU)), Layer((replace(A, rope=None), F)),
        Layer((LOCAL, F)), Layer((replace(A, growth=0.3, growth_every=8), F)),
    ),
    "factors": stacked(
        Layer((replace(A, scale=0.1, out_factor=0.3), replace(F, out_factor=0.3))),
        Layer((replace(A, out_factor=0.3), replace(F, gate_factor=2.0, out_factor=0.2))),
        embed_factor=3.0, logit_factor=0.125,
    ),
    "norms_behind": stacked(
        Layer((replace(A, norm="after", qk_norm="all"), replace(F, norm="after"))),
        Layer((replace(ODD, rope=Rope(dim=12), qk_norm="all", norm_turned=True), F)),
        Layer((replace(A, qk_norm="head", norm_turned=True, norm="none"), replace(F, norm="none"))),
    ),
    "learned_positions": stacked(
        *[Layer((replace(BIASED, rope=None), PLAIN))] * 2, norm_kind="layer", norm_bias=True,
        positions=512, tied_head=True,
    ),
    "side_by_side": stacked(
        Layer(((replace(BIASED, rope=Rope(dim=8)), PLAIN),)),
        Layer(((replace(A, norm="both", out_factor=0.5), PLAIN),)),
        Layer(((A, replace(F, norm="shared")),)),
        norm_kind="layer", norm_bias=True, head_bias=True, logit_factor=0.5,
    ),
    "slopes": stacked(
        *[Layer((replace(ODD, alibi=True), replace(PLAIN, activation="relu")))] * 2,
        Layer((A, replace(PLAIN, activation="relu2"))),
        norm_kind="layer", norm_bias=True, embed_norm=True,
    ),
    "centred": stacked(
        Layer(((A, replace(F, norm="shared")),)),
        Layer((A, replace(F, activation="gelu"))),
        norm_kind="layer",
    ),
    "sinks": stacked(
        Layer((replace(LOCAL, sinks=True, bias=True), CLAMPED)),
        Layer((replace(BIASED, sinks=True), CLAMPED)),
    ),
    "experts": stacked(
        Layer((A, Feed(0, mixture=Mixture(8, 2, 40, normalised=True)))), Layer((A, F)),
        Layer((A, Feed(0, mixture=Mixture(4, 2, 72, shared_size=24, score="sigmoid", bias=True)))),
    ),
    "rectified": stacked(
        *[Layer((A, Feed(0, mixture=Mixture(8, 8, 24, score="relu"), gated=False)))] * 2
    ),
    "second_embeddings": stacked(
        Layer((replace(GEMMA, window=6, value_norm=True), GELU, TokenInput(20)), scaled=True),
        Layer((replace(FAR, keys_as_values=True), GELU, TokenInput(20)), scaled=True),
        Layer((replace(GEMMA, window=6, keys_of=0), GELU, TokenInput(20)), scaled=True),
        Layer((replace(FAR, keys_of=1),
               replace(GELU, mixture=Mixture(5, 2, 36, normalised=True, scaled=True)),
               TokenInput(20)), scaled=True),
        token_width=20, token_rows=77, softcap=20.0, tied_head=True, embed_factor=52**0.5,
    ),
    "low_rank": stacked(*[Layer((replace(ODD, rope=Rope(dim=12), query_rank=40), F))] * 2),
    "ladder": stacked(
        Layer((A, F), ladder=True), Layer((replace(A, norm="both"), F), ladder=True)
    ),
}  # fmt: skip
"""A model for each option of :mod:`paradecode.models.parts`."""
CONFIGS |= PARTS


def make(
    config: ModelConfig, *, seed: int = 0, pages: int = 64, **options: object
) -> NativeBackend:
    backend = NativeBackend(config, random_weights(config, seed), **options)  # type: ignore[arg-type]
    backend.reserve(pages)
    return backend


def page_count(tokens: int) -> int:
    return -(-tokens // PAGE)
