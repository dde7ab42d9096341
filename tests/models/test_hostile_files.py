"""Damaged and hostile model files either load or raise InvalidModel."""

from __future__ import annotations

import json
import os
import resource
import struct

import numpy as np
import pytest
from gguf_writing import raw_gguf, write_gguf

from paradecode.core.errors import InvalidModel
from paradecode.models import gguf_header, safetensors_dir
from paradecode.models.gguf_experts import single
from paradecode.models.gguf_file import read_gguf
from paradecode.models.gguf_header import read_header
from paradecode.models.mixture import Mixture
from paradecode.models.safetensors_dir import read_folder, read_weights
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor

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
    """Return True if the file loads, and False if it is refused with InvalidModel."""
    try:
        read(path)
    except InvalidModel:
        return False
    return True


def damaged(data: bytes, seed: int, header: int) -> bytes:
    """Return damaged bytes: truncated, with flipped bits, or with an absurd number in a header."""
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
    """Write a tiny llama as transformers does, without needing transformers."""
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
    """Copy the folder's two files to ``target``, with changes to config.json."""
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


HUGE = 10**400
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip
GEMMA = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32, "num_hidden_layers": 6}


def gemma(**changes):
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "text_config": {**GEMMA, **changes},
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"head_dim": HUGE}, "head_dim"), ({"hidden_size": HUGE}, "hidden_size"),
        (gemma(global_head_dim=HUGE), "global_head_dim"),
        (gemma(per_layer_config={"5": {"head_dim": HUGE}}), "head_dim"),
        ({**EXPERTS, "mlp_only_layers": 5}, "mlp_only_layers"),
        ({**EXPERTS, "mlp_only_layers": "abc"}, "mlp_only_layers"),
        ({**EXPERTS, "mlp_only_layers": [-1]}, "mlp_only_layers"),
        ({**EXPERTS, "mlp_only_layers": [0.5]}, "mlp_only_layers"),
        ({**EXPERTS, "num_hidden_layers": 1025}, "num_hidden_layers"),
    ],
    ids=lambda each: str(each)[-40:],
)  # fmt: skip
def test_numbers_without_bounds(tmp_path, folder, changes, field):
    with pytest.raises(InvalidModel, match=field):
        read_weights(copy(folder, tmp_path / "d", **changes))


def test_experts_of_all_layers_are_bounded():
    """The number of experts in all layers is limited.

    The names and shapes of the experts take memory before any file is read.
    """
    config, _ = tiny_checkpoint("llama")
    assert config.altered(layers=94, mixture=Mixture(512, 8, 32)).layers == 94
    with pytest.raises(InvalidModel, match="at most 128"):
        config.altered(layers=1024, mixture=Mixture(129, 8, 32))


def test_a_message_is_short(tmp_path, folder):
    llada = {"architectures": ["LLaDAModelLM"], "n_layers": "x" * 100_000}
    with pytest.raises(InvalidModel, match=r"n_layers says 'x+") as caught:
        read_weights(copy(folder, tmp_path / "d", **llada))
    assert len(str(caught.value)) < 500
    llada = {"architectures": ["LLaDAModelLM"], "embedding_size": 5, "vocab_size": "x" * 100_000}
    with pytest.raises(InvalidModel) as caught:
        read_weights(copy(folder, tmp_path / "d", **llada))
    assert len(str(caught.value)) < 500


def stored(target, header, data=b""):
    """Write a file of tensors that has this header into the folder."""
    text = json.dumps(header).encode()
    (target / "model.safetensors").unlink()
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return target


def test_tensors_without_numbers(tmp_path, folder):
    """Tensors without numbers are refused: a file of a hundred bytes could have many experts."""
    name = "model.decoder.layers.0.experts.down_proj"
    header = {name: {"dtype": "F32", "shape": [4000, 0, 5], "data_offsets": [0, 0]}}
    with pytest.raises(InvalidModel, match=f"{name}.*must have numbers"):
        read_weights(stored(copy(folder, tmp_path / "d", **gemma()), header))


def test_as_many_experts_as_the_configuration_says(tmp_path, folder):
    name = "model.decoder.layers.0.experts.down_proj"
    header = {name: {"dtype": "F32", "shape": [5, 1, 1], "data_offsets": [0, 20]}}
    with pytest.raises(InvalidModel, match=r"layers\.0\.experts\.down.*each of 4 experts"):
        read_weights(stored(copy(folder, tmp_path / "d", **gemma()), header, bytes(20)))
    five = Tensor(np.zeros((5, 1, 1), np.float32), (5, 1, 1))
    assert len(list(single("experts.down", five, Mixture(5, 2, 1)))) == 5
    for mixture in (Mixture(4, 2, 1), None):
        with pytest.raises(InvalidModel, match="matrix for each"):
            list(single("experts.down", five, mixture))


def test_a_number_in_the_place_of_a_matrix(tmp_path, folder):
    name = "model.layers.0.attention.query_key_value.weight"
    header = {name: {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}
    with pytest.raises(InvalidModel, match=name):
        read_weights(stored(copy(folder, tmp_path / "d"), header, bytes(4)))


def test_headers_and_settings_have_a_size(tmp_path, folder, monkeypatch):
    """Headers and settings are bounded: parsed objects take thirty times their text's memory."""
    target = copy(folder, tmp_path / "d")
    (target / "config.json").write_text("{}" + " " * (1 << 22))
    with pytest.raises(InvalidModel, match="too large"):
        read_weights(target)
    monkeypatch.setattr(safetensors_dir, "MAX_HEADER", 1000)
    with pytest.raises(InvalidModel, match="at most 1000 bytes"):
        read_weights(folder)


def test_only_regular_files_are_read(tmp_path, folder):
    """Only regular files are read: a pipe would block forever, and a device may never end."""
    for kind in ("device", "pipe"):
        target = copy(folder, tmp_path / kind)
        (target / "config.json").unlink()
        if kind == "device":
            (target / "config.json").symlink_to("/dev/null")
        else:
            os.mkfifo(target / "config.json")
        with pytest.raises(InvalidModel, match="regular file"):
            read_weights(target)


def test_tensors_in_one_place(tmp_path):
    """Tensors that share their bytes are refused: a small file would become a large model."""
    shape, data = (32, 8), bytes(1024)
    one = raw_gguf([], {"a": (shape, 0), "b": (shape, 1024)}, data * 2)
    assert len(read_header(memoryview(one)).tensors) == 2
    with pytest.raises(InvalidModel, match=r"2 tensors.*damaged"):
        read_header(memoryview(raw_gguf([], {"a": (shape, 0), "b": (shape, 0)}, data)))


def test_names_and_numbers_of_entries_in_a_gguf_file(monkeypatch):
    fields = [(f"{index:0256}", index) for index in range(3)]
    assert len(read_header(memoryview(raw_gguf(fields, {}, b""))).fields) == 3
    with pytest.raises(InvalidModel, match="metadata key"):
        read_header(memoryview(raw_gguf([("k" * 257, 1)], {}, b"")))
    with pytest.raises(InvalidModel, match="tensor name"):
        read_header(memoryview(raw_gguf([], {"t" * 257: ((32, 8), 0)}, bytes(1024))))
    monkeypatch.setattr(gguf_header, "MAX_ENTRIES", 2)
    with pytest.raises(InvalidModel, match="kv_count"):
        read_header(memoryview(raw_gguf(fields, {}, b"")))


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
