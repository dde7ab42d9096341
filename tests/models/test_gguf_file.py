"""GGUF files: names, shapes, kinds and the order of rotary rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter, quants
from gguf_writing import random_blocks, write_gguf

from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.gguf_file import read_gguf
from paradecode.models.mixture import Mixture
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Kind

KINDS = [
    Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1,
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS,
]  # fmt: skip


def wide_config(architecture: str) -> ModelConfig:
    """Return a configuration with rows of 256 numbers, which the K kinds need."""
    return uniform(
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
    config = config.altered(rope=Rope(theta=12345.0, dim=16), norm_eps=2.0**-17)
    write_gguf(tmp_path / "m.gguf", config, {n: t.float32() for n, t in weights.items()})
    read = read_gguf(tmp_path / "m.gguf")
    size = config.vocab_size
    ids = {"bos_token": size - 2, "eos_tokens": (size - 3, size - 1)}
    assert read.config == replace(config, name="a small model", **ids)
    assert read.weights.keys() == config.tensors().keys()
    assert read.tokenizer.decode(read.tokenizer.encode("the thing")) == "the thing"


def expert_config(architecture: str) -> ModelConfig:
    causal = architecture == "qwen3moe"
    return uniform(
        name="a small model", architecture=architecture, vocab_size=96, hidden_size=64, layers=2,
        heads=4, kv_heads=2, head_dim=16, intermediate_size=32, rope=Rope(dim=16), qk_norm=True,
        norm_eps=2.0**-17, attention="causal" if causal else "full",
        mask_token=None if causal else 90, shift=architecture == "rnd1",
        mixture=Mixture(6, 2, 32, normalised=architecture != "llada-moe"),
        decoder="" if causal else "threshold(block_length=32)",
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ["llada-moe", "rnd1", "qwen3moe"])
def test_experts_as_the_converter_writes_them(tmp_path, architecture):
    config = expert_config(architecture)
    random = np.random.default_rng(5)
    stored = {n: random.standard_normal(s, np.float32) for n, s in config.tensors().items()}
    write_gguf(tmp_path / "m.gguf", config, stored)
    made = read_gguf(tmp_path / "m.gguf")
    read = replace(made.config, bos_token=None, eos_tokens=())
    assert read == config
    assert made.weights.keys() == stored.keys()
    for name, rows in stored.items():
        np.testing.assert_array_equal(made.weights[name].float32(), rows, err_msg=name)


def test_quantised_experts_are_views(tmp_path):
    config = expert_config("llada-moe").altered(mixture=Mixture(3, 2, 64), intermediate_size=64)
    random = np.random.default_rng(6)
    stored = {n: random.standard_normal(s, np.float32) for n, s in config.tensors().items()}
    write_gguf(tmp_path / "f32.gguf", config, stored)
    path = tmp_path / "q8.gguf"
    requantised(tmp_path / "f32.gguf", path)
    weights = read_gguf(path).weights
    for name, rows in stored.items():
        if ".experts." in name:
            assert weights[name].kind == Kind.Q8_0
            raw = quants.quantize(rows, Kind.Q8_0)
            np.testing.assert_array_equal(weights[name].data, raw)


def requantised(source, target):
    """Write the same file with its experts as Q8_0."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llada-moe")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = field.types
            writer.add_key_value(key, field.contents(), kinds[0], *kinds[1:2])
    for tensor in reader.tensors:
        if "_exps" in tensor.name:
            raw = quants.quantize(tensor.data, Kind.Q8_0)
            writer.add_tensor(tensor.name, raw, raw_dtype=Kind.Q8_0)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_experts_of_other_architectures_are_refused(tmp_path):
    config, weights = tiny_checkpoint("qwen2")
    config = config.altered(mixture=Mixture(6, 2, 32))
    write_gguf(tmp_path / "m.gguf", config, {n: t.float32() for n, t in weights.items()})
    with pytest.raises(InvalidModel, match=r"expert_count.*llada-moe"):
        read_gguf(tmp_path / "m.gguf")


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
    config = uniform(
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
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write_gguf(path, config, plain | {"rope_freqs": factors}, extra=linear)
    np.testing.assert_allclose(read_gguf(path).config.rope.inverse_frequencies(), expected / 4)
    write_gguf(path, config, plain, extra=linear)
    assert read_gguf(path).config.rope == Rope(dim=16, scaling="linear", factor=4.0)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    write_gguf(path, config, plain | {"rope_freqs": factors}, extra=yarn)
    with pytest.raises(InvalidModel, match="beside rope_freqs"):
        read_gguf(path)
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
    write_gguf(path, replace(config, architecture="rwkv7"), plain)
    with pytest.raises(InvalidModel, match=r"rwkv7.*qwen2"):
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


def test_the_default_model_is_opened_without_a_copy_of_its_weights():
    checkpoint = open_model()
    weights = checkpoint.weights
    copied = [name for name in checkpoint.config.tensors() if weights[name].data.base is None]
    assert {name.rpartition(".")[2] for name in copied} == {"q", "k"}  # Their rows change places.
    config = checkpoint.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert config.tied_head
    assert 2 in config.eos_tokens
    assert config.name == "smollm2-135m-instruct"
