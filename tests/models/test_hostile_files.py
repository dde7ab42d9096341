"""Damaged and hostile model files: they load or raise InvalidModel; nothing else happens."""

from __future__ import annotations

import json
import os
import resource
import struct

import numpy as np
import pytest
from gguf_writing import write_gguf

from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_file import read_gguf
from paradecode.models.safetensors_dir import read_folder, read_weights
from paradecode.models.tiny import tiny_checkpoint

ROUNDS = 300


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    config, weights = tiny_checkpoint("llama")
    write_gguf(path, config, {name: tensor.float32() for name, tensor in weights.items()})
    return path.read_bytes()


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def survives(read, path) -> bool:
    """True when it loaded, False when refused in the right way."""
    try:
        read(path)
    except InvalidModel:
        return False
    return True


def damaged(data: bytes, seed: int, header: int) -> bytes:
    """A truncation, flipped bits, or an absurd number somewhere in the header."""
    random = np.random.default_rng(seed)
    if seed % 3 == 0:
        return data[: random.integers(0, len(data))]
    changed = bytearray(data)
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(0, header - 8))
        if seed % 3 == 1:
            changed[at] ^= 1 << int(random.integers(0, 8))
        else:
            absurd = [0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]
            changed[at : at + 8] = struct.pack("<Q", absurd[random.integers(0, 7)])
    return bytes(changed)


def test_damaged_gguf(tmp_path, gguf_bytes):
    before, path, loaded = peak_megabytes(), tmp_path / "m.gguf", 0
    header = gguf_bytes.index(b"blk.1.attn_v")
    for seed in range(ROUNDS):
        path.unlink(missing_ok=True)
        path.write_bytes(damaged(gguf_bytes, seed, header))
        loaded += survives(read_gguf, path)
    assert 0 < loaded < ROUNDS / 2  # some flips only change a letter of a token
    assert peak_megabytes() - before < 100


def test_every_truncation_of_the_header(tmp_path, gguf_bytes):
    path = tmp_path / "m.gguf"
    for length in [*range(64), *range(64, 3000, 97)]:
        path.unlink(missing_ok=True)
        path.write_bytes(gguf_bytes[:length])
        assert not survives(read_gguf, path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"llama.block_count", 0), (b"llama.block_count", 2**31), (b"llama.block_count", 1000),
        (b"llama.embedding_length", 0), (b"llama.embedding_length", 65),
        (b"llama.attention.head_count", 0), (b"llama.attention.head_count", 3),
        (b"llama.attention.head_count_kv", 0), (b"llama.attention.key_length", 2**31),
        (b"llama.rope.dimension_count", 0), (b"llama.rope.dimension_count", 15),
        (b"llama.rope.dimension_count", 1 << 20), (b"llama.rope.freq_base", 0x7FC00000),
        (b"llama.attention.layer_norm_rms_epsilon", 0x7F800000),
        (b"tokenizer.ggml.eos_token_id", 96), (b"tokenizer.ggml.bos_token_id", 1 << 20),
    ],
)  # fmt: skip
def test_absurd_hyperparameters(tmp_path, gguf_bytes, key, value):
    named = struct.pack("<Q", len(key)) + key
    at = gguf_bytes.index(named) + len(named) + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes[:at] + struct.pack("<I", value) + gguf_bytes[at + 4 :])
    assert not survives(read_gguf, path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"<|im_start|>", b"<|im_\xff\xfert|>"),
        (b"<|im_start|>", b"<|endoftext|>"[:12]),
        (b"smollm", b"nosuch"),
        (b"blk.1.attn_v", b"blk.0.attn_v"),
        (b"blk.1.attn_v", b"blk.7.attn_v"),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"),
        (b"general.architecture", b"general.brchitecture"),
    ],
)
def test_bad_text_names_and_keys(tmp_path, gguf_bytes, old, new):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes.replace(old, new))
    assert survives(read_gguf, path) is (new == b"<|endoftext|>"[:12])


def test_missing_places(tmp_path):
    for read, place in (
        (read_gguf, tmp_path / "absent.gguf"),
        (read_gguf, tmp_path),
        (read_folder, tmp_path / "absent"),
        (read_folder, tmp_path),
    ):
        with pytest.raises(InvalidModel, match=str(tmp_path)):
            read(place)
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    assert not survives(read_gguf, tmp_path / "empty.gguf")
    assert not survives(read_gguf, tmp_path / "pipe.gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny llama as transformers writes it, without needing transformers."""
    from safetensors.numpy import save_file

    place = tmp_path_factory.mktemp("s")
    config, weights = tiny_checkpoint("llama")
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    parts = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    parts |= {part: f"self_attn.{part}_proj" for part in "qkvo"}
    parts |= {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    for layer in range(config.layers):
        for part, stored in parts.items():
            names[f"layers.{layer}.{part}"] = f"model.layers.{layer}.{stored}.weight"
    save_file({names[n]: t.float32() for n, t in weights.items()}, place / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "tie_word_embeddings": True, "eos_token_id": 0,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(settings))
    return place


def copy(folder, target, **changes):
    """The folder's two files at ``target``, with changes to config.json."""
    target.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (target / name).unlink(missing_ok=True)
        (target / name).write_bytes((folder / name).read_bytes())
    settings = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(settings))
    return target


def test_damaged_safetensors(tmp_path, folder):
    data = (folder / "model.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    before, loaded = peak_megabytes(), 0
    target = copy(folder, tmp_path / "d")
    for seed in range(ROUNDS):
        (target / "model.safetensors").unlink()
        (target / "model.safetensors").write_bytes(damaged(data, seed, header))
        loaded += survives(read_weights, target)
    assert loaded < ROUNDS / 2
    assert peak_megabytes() - before < 100
    assert survives(read_weights, folder)


def test_damaged_configuration(tmp_path, folder):
    text = (folder / "config.json").read_bytes()
    target = copy(folder, tmp_path / "d")
    for seed in range(ROUNDS // 2):
        (target / "config.json").write_bytes(damaged(text, seed, len(text)))
        survives(read_weights, target)
    (target / "config.json").write_text("[" * 100000)
    assert not survives(read_weights, target)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["NoSuchForCausalLM"]}, {"architectures": "x"}, {"architectures": [3]},
        {"hidden_size": "64"}, {"hidden_size": 1e400}, {"num_attention_heads": 0},
        {"num_hidden_layers": True}, {"rms_norm_eps": float("nan")}, {"head_dim": -16},
        {"rope_parameters": {"rope_type": "longrope"}}, {"rope_scaling": [1]},
        {"rope_scaling": {"type": "linear", "factor": float("inf")}},
        {"rope_scaling": {"type": "linear"}}, {"rope_theta": -1.0},
        {"hidden_act": "gelu"}, {"eos_token_id": [1, "2"]}, {"eos_token_id": 4096},
        {"partial_rotary_factor": 9.0}, {"quantization_config": {"bits": 4}},
    ],
    ids=str,
)  # fmt: skip
def test_absurd_configuration(tmp_path, folder, changes):
    assert not survives(read_weights, copy(folder, tmp_path / "d", **changes))


def test_shards_stay_in_the_folder(tmp_path, folder):
    target = copy(folder, tmp_path / "d")
    (target / "model.safetensors").rename(tmp_path / "outside.safetensors")
    for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "x.bin", 3):
        index = {"weight_map": {"model.norm.weight": name}}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(InvalidModel, match="weight_map"):
            read_weights(target)


def test_pickles_are_never_opened(tmp_path, folder):
    target = copy(folder, tmp_path / "d")
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(InvalidModel, match="pickles"):
        read_weights(target)
