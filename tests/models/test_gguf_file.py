"""GGUF files: names, shapes, kinds and the order of rotary rows."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader, quants
from gguf_writing import random_blocks, write_gguf

from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.gguf_file import read_gguf
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Kind

KINDS = [
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1,
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS,
]  # fmt: skip


def wide_config(architecture: str) -> ModelConfig:
    """Rows of 256 numbers, as the K kinds need."""
    return ModelConfig(
        name="wide", architecture=architecture, vocab_size=264, hidden_size=256, layers=1,
        heads=4, kv_heads=2, head_dim=64, intermediate_size=512, rope=Rope(dim=64),
        qkv_bias=architecture == "qwen2", qk_norm=architecture == "qwen3",
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_reads_as_the_gguf_package_says(tmp_path, architecture, kind):
    config = wide_config(architecture)
    stored, kinds = {}, {}
    for seed, (name, shape) in enumerate(config.tensors().items()):
        if len(shape) == 1:
            stored[name] = np.random.default_rng(seed).standard_normal(shape, np.float32)
        else:
            stored[name], kinds[name] = random_blocks(*shape, kind, seed), kind
    write_gguf(tmp_path / "m.gguf", config, stored, kinds)
    checkpoint = read_gguf(tmp_path / "m.gguf")
    for name, rows in stored.items():
        tensor = checkpoint.weights[name]
        assert tensor.kind == kinds.get(name, Kind.F32)
        expected = quants.dequantize(rows, kinds[name]) if name in kinds else rows
        np.testing.assert_array_equal(tensor.float32(), expected, err_msg=name)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_configuration_round_trip(tmp_path, kind):
    config, weights = tiny_checkpoint(kind)
    config = replace(config, rope=Rope(theta=12345.0, dim=16), norm_eps=2.0**-17)
    write_gguf(tmp_path / "m.gguf", config, {n: t.float32() for n, t in weights.items()})
    read = read_gguf(tmp_path / "m.gguf")
    size = config.vocab_size
    ids = {"bos_token": size - 2, "eos_tokens": (size - 3, size - 1)}
    assert read.config == replace(config, name="a small model", **ids)
    assert read.weights.keys() == config.tensors().keys()
    assert read.tokenizer.decode(read.tokenizer.encode("the thing")) == "the thing"


@pytest.mark.parametrize(("name", "shift"), [("llada", False), ("dream", True)])
def test_diffusion_models(tmp_path, name, shift):
    config, weights = tiny_checkpoint("qwen2" if name == "dream" else "llama")
    plain = {part: tensor.float32() for part, tensor in weights.items()}
    write_gguf(tmp_path / "m.gguf", replace(config, architecture=name), plain)
    read = read_gguf(tmp_path / "m.gguf")
    assert (read.config.attention, read.config.shift) == ("full", shift)
    np.testing.assert_array_equal(read.weights["layers.1.k"].float32(), plain["layers.1.k"])


def test_rows_of_a_transformers_llama_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False,
        )
    )  # fmt: skip
    config = ModelConfig(
        name="x", architecture="llama", vocab_size=64, hidden_size=64, layers=2, heads=4,
        kv_heads=2, head_dim=16, intermediate_size=96, rope=Rope(dim=16),
    )  # fmt: skip
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    names = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    parts = {
        "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    } | {part: f"self_attn.{part}_proj" for part in "qkvo"}  # fmt: skip
    for layer in range(2):
        names |= {f"layers.{layer}.{p}": f"model.layers.{layer}.{n}" for p, n in parts.items()}
    expected = {name: state[f"{stored}.weight"] for name, stored in names.items()}
    write_gguf(tmp_path / "m.gguf", config, expected)
    stored_q = next(t for t in GGUFReader(tmp_path / "m.gguf").tensors if "attn_q" in t.name)
    assert not np.array_equal(stored_q.data, expected["layers.0.q"])  # the file is permuted
    for name, tensor in read_gguf(tmp_path / "m.gguf").weights.items():
        np.testing.assert_array_equal(tensor.float32(), expected[name], err_msg=name)


def test_rope_scaling(tmp_path):
    config, weights = tiny_checkpoint("qwen2")
    plain = {name: tensor.float32() for name, tensor in weights.items()}
    path = tmp_path / "m.gguf"
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf(path, config, plain | {"rope_freqs": factors})
    rope = read_gguf(path).config.rope
    assert rope.factors == tuple(factors.tolist())
    expected = Rope(dim=16).inverse_frequencies() / factors
    np.testing.assert_allclose(rope.inverse_frequencies(), expected)
    write_gguf(
        path, config, plain, extra={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    )
    assert read_gguf(path).config.rope == Rope(dim=16, scaling="linear", factor=4.0)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    write_gguf(path, config, plain, extra=yarn)
    rope = read_gguf(path).config.rope
    assert (rope.scaling, rope.factor) == ("yarn", 4.0)
    assert rope.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    write_gguf(
        path, config, plain, extra={"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}
    )
    with pytest.raises(InvalidModel, match="longrope"):
        read_gguf(path)


def test_what_cannot_be_computed_is_refused(tmp_path):
    config, weights = tiny_checkpoint("llama")
    plain = {name: tensor.float32() for name, tensor in weights.items()}
    path = tmp_path / "m.gguf"
    write_gguf(path, replace(config, architecture="mamba"), plain)
    with pytest.raises(InvalidModel, match=r"mamba.*qwen2"):
        read_gguf(path)
    norms = {f"layers.{n}.{part}_norm": np.ones(16, np.float32) for n in (0, 1) for part in "qk"}
    write_gguf(path, config, plain | norms)
    with pytest.raises(InvalidModel, match="q_norm"):
        read_gguf(path)
    write_gguf(path, config, {n: t for n, t in plain.items() if n != "layers.1.up"})
    with pytest.raises(InvalidModel, match=r"layers\.1\.up"):
        read_gguf(path)
    write_gguf(path, config, plain, extra={"rope.freq_base": float("nan")})
    with pytest.raises(InvalidModel, match="freq_base"):
        read_gguf(path)


def test_the_default_model_opens_fast():
    start = time.perf_counter()
    checkpoint = open_model()
    assert time.perf_counter() - start < 2.5
    config = checkpoint.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert config.tied_head
    assert 2 in config.eos_tokens
    assert config.name == "smollm2-135m-instruct"
