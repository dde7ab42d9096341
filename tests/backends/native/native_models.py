"""Tiny models of many shapes in the native core, with pages already reserved."""

from naive import random_weights

from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.models.config import ModelConfig, Rope, uniform

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


def make(
    config: ModelConfig, *, seed: int = 0, pages: int = 64, **options: object
) -> NativeBackend:
    backend = NativeBackend(config, random_weights(config, seed), **options)  # type: ignore[arg-type]
    backend.reserve(pages)
    return backend


def page_count(tokens: int) -> int:
    return -(-tokens // PAGE)
