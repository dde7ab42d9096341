"""DiffusionGemma from a GGUF file has the weights, the logits and the tokens of its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, quants

from paradecode import LLM
from paradecode.core.errors import InvalidModel
from paradecode.models.families import BY_NAME
from paradecode.models.families.family import GGUF_NAMES, GGUF_OUTSIDE
from paradecode.models.gguf_file import read_gguf
from paradecode.models.safetensors_dir import read_weights
from paradecode.models.weights import Kind
from tiny_gemma import (
    CANVAS,
    EXPERT,
    EXPERTS,
    GROUPS,
    HEADS,
    INNER,
    LAYERS,
    SIZE,
    VOCABULARY,
    WIDE,
    D,
    write_gemma,
)

ARCHITECTURE = "diffusion-gemma"
NAMES = {**GGUF_NAMES, **BY_NAME[ARCHITECTURE].gguf_names}
IN_LAYER = {
    own: stored if ".scale" in stored else f"{stored}.weight" for stored, own in NAMES.items()
}
OUTSIDE = {own: f"{stored}.weight" for stored, own in GGUF_OUTSIDE.items()}
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<0xC3>", "<0xA9>"]
LETTERS = ["▁", "\n", *"abcdehilnorstw", "in", "the", "th", "▁the", "\n\n", "▁▁", "ri", "rin"]
MERGES = ["i n", "t h", "th e", "▁ the", "\n \n", "▁ ▁", "r i", "r in"]
FIELDS: dict[str, Any] = {
    "block_count": LAYERS, "context_length": 256, "embedding_length": D,
    "feed_forward_length": INNER, "attention.head_count": HEADS,
    "attention.head_count_kv": [GROUPS, GROUPS, 1], "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4, "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": EXPERTS,
    "expert_used_count": 2, "attention.key_length": WIDE, "attention.value_length": WIDE,
    "attention.key_length_swa": SIZE, "attention.value_length_swa": SIZE,
    "final_logit_softcapping": 30.0, "attention.sliding_window": 6,
    "attention.sliding_window_pattern": [True, True, False], "attention.causal": False,
    "expert_feed_forward_length": EXPERT, "rope.dimension_count": WIDE,
    "rope.dimension_count_swa": SIZE, "embedding_length_per_layer_input": 0,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "diffusion.canvas_length": CANVAS, "tokenizer.ggml.mask_token_id": 4,
    "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_space_prefix": False,
}  # fmt: skip


def tokens() -> list[str]:
    known = [*SPECIAL, *LETTERS]
    return [*known, *(f"<unused{i}>" for i in range(VOCABULARY - len(known)))]


def write(path: Path, folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Write a folder's weights as the converters do: experts in one tensor, and as Q8_0.

    Args:
        change: changes the dict of fields and tensors, by name.
    """
    _, weights = read_weights(folder)
    found: dict[str, Any] = {f"{ARCHITECTURE}.{key}": value for key, value in FIELDS.items()}
    found |= OTHERS
    turned = [1.0] * (WIDE // 8) + [1e30] * (WIDE // 2 - WIDE // 8)
    found["rope_freqs.weight"] = np.array(turned, np.float32)
    experts: dict[str, list[np.ndarray]] = {}
    for name, tensor in weights.items():
        values = tensor.float32()
        if not name.startswith("layers."):
            found[OUTSIDE[name]] = values
            continue
        _, layer, part = name.split(".", 2)
        if part.startswith("experts."):
            experts.setdefault(f"{layer}.{part.split('.')[2]}", []).append(values)
        else:
            found[f"blk.{layer}.{IN_LAYER[part]}"] = values
    for layer in range(LAYERS):
        gate, up, down = (np.stack(experts[f"{layer}.{part}"]) for part in ("gate", "up", "down"))
        found[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate([gate, up], axis=1)
        found[f"blk.{layer}.ffn_down_exps.weight"] = down
    if change is not None:
        change(found)
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens())
    writer.add_token_merges(MERGES)
    writer.add_token_scores([-1000.0] * VOCABULARY)
    writer.add_token_types([3] * 7 + [6] * 2 + [1] * (VOCABULARY - 9))
    adds: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32,
                             float: writer.add_float32, list: writer.add_array}  # fmt: skip
    for name, value in found.items():
        if not isinstance(value, np.ndarray):
            adds[type(value)](name, value)
        elif name.endswith("ffn_gate_up_exps.weight"):
            writer.add_tensor(name, quants.quantize(value, Kind.Q8_0), raw_dtype=Kind.Q8_0)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "it")


def test_a_file_is_read_as_its_folder(folder: Path, tmp_path: Path) -> None:
    config, weights = read_weights(folder)
    found = read_gguf(write(tmp_path / "g.gguf", folder))
    for name in ("architecture", "vocab_size", "hidden_size", "stack", "context_length",
                 "embed_factor", "softcap", "tied_head", "decoder", "canvas_length"):  # fmt: skip
        assert getattr(found.config, name) == getattr(config, name), name
    assert found.config.norm_eps == pytest.approx(config.norm_eps)
    assert found.weights.keys() == weights.keys()
    for name, tensor in weights.items():
        ours, theirs = found.weights[name].float32(), tensor.float32()
        near = 0.01 if ".experts." in name and "down" not in name else 0.0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=near * np.abs(theirs).max())
    assert found.config.eos_tokens == (1, 6)
    assert found.tokenizer.add_bos


def test_it_decodes_as_its_folder(folder: Path, tmp_path: Path) -> None:
    """The GGUF file with experts in 32 bits gives the same bits as its folder."""

    def whole(found: dict[str, Any]) -> None:
        for layer in range(LAYERS):
            gate_up = found.pop(f"blk.{layer}.ffn_gate_up_exps.weight")
            found[f"blk.{layer}.ffn_gate_exps.weight"] = gate_up[:, :EXPERT].copy()
            found[f"blk.{layer}.ffn_up_exps.weight"] = gate_up[:, EXPERT:].copy()

    params = {"max_tokens": 20, "seed": 3, "steps": 5, "ignore_eos": True}
    path = write(tmp_path / "g.gguf", folder, whole)
    prompt = [2, 5, 9, 33, 17, 21, 8, 4, 44, 50]
    with LLM(folder, dtype="q8") as one, LLM(path, dtype="q8") as two:
        wanted = one.complete([prompt], **params)[0].token_ids
        assert two.complete([prompt], **params)[0].token_ids == wanted
        assert str(two.decoder) == "renoise"


def test_texts_have_the_tokens_of_gemma(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = read_gguf(write(tmp_path / "g.gguf", folder)).tokenizer
    theirs = transformers.GemmaTokenizer(
        vocab={token: i for i, token in enumerate(tokens())},
        merges=[tuple(merge.split(" ")) for merge in MERGES],
        additional_special_tokens=["<|turn>", "<turn|>"],
    )
    for text in ("the ring\n\n\nis  there", " the", "é and\nthe", "", "<|turn>rin<turn|>the",
                 "x\u00e9y", "   a"):  # fmt: skip
        wanted = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, special=False) == wanted, text
        assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=True)


def test_the_sampler_is_what_the_file_says(folder: Path, tmp_path: Path) -> None:
    def said(found: dict[str, Any]) -> None:
        found["diffusion.eb_max_steps"] = 12
        found["diffusion.eb_entropy_bound"] = 0.25

    with LLM(write(tmp_path / "g.gguf", folder, said)) as llm:
        assert str(llm.decoder) == "renoise(steps=12,entropy=0.25)"


@pytest.mark.parametrize(("name", "value", "said"), [
    ("attention.head_count_kv", [2, 1, 1], "head_count_kv"),
    ("attention.head_count_kv", [2, 2], "layers.2.k"),
    ("attention.head_count_kv", 2, "layers.2.k"),
    ("attention.sliding_window_pattern", [True, True, True], "sliding_window_pattern"),
    ("attention.sliding_window_pattern", [True], "sliding_window_pattern"),
    ("attention.shared_kv_layers", 4, "kv_shared_layers"),
    ("embedding_length_per_layer_input", 256, "per_layer_input"),
    ("expert_used_count", 9, "chosen"),
    ("expert_count", 0, "experts"),
    ("final_logit_softcapping", -1.0, "softcap"),
    ("attention.key_length", 7, "rope_freqs|turned"),
    ("attention.key_length", 1 << 30, "rope_freqs|head_dim"),
    ("block_count", 1 << 30, "num_hidden_layers"),
])  # fmt: skip
def test_damaged_fields_are_named(
    folder: Path, tmp_path: Path, name: str, value: Any, said: str
) -> None:
    with pytest.raises(InvalidModel, match=said):
        read_gguf(write(tmp_path / "g.gguf", folder,
                        lambda found: found.update({f"{ARCHITECTURE}.{name}": value})))  # fmt: skip


@pytest.mark.parametrize(("name", "value", "said"), [
    ("rope_freqs.weight", np.array([1, 2, *[1e30] * 6], np.float32), "rope_freqs"),
    ("rope_freqs.weight", np.ones(3, np.float32), "rope_freqs"),
    ("rope_freqs.weight", None, "rope_freqs"),
    ("rope_freqs.weight", np.full(8, np.nan, np.float32), "rope_freqs"),
    ("blk.1.ffn_down_exps.scale", None, "router.gain"),
    ("blk.0.ffn_gate_up_exps.weight", np.zeros((EXPERTS, 5, D), np.float32), "experts.gate_up"),
    ("blk.0.ffn_gate_up_exps.weight", np.zeros((EXPERTS, 2 * EXPERT, 2 * D), np.float32), "gate"),
    ("blk.0.ffn_gate_up_exps.weight", np.zeros((8, D), np.float32), "experts"),
    ("self_cond_up.weight", None, "guess.up"),
    ("blk.0.per_layer_gate.weight", np.zeros((4, D), np.float32), "per_layer_gate"),
])  # fmt: skip
def test_damaged_tensors_are_named(
    folder: Path, tmp_path: Path, name: str, value: Any, said: str
) -> None:
    def change(found: dict[str, Any]) -> None:
        found.pop(name, None)
        if value is not None:
            found[name] = value

    with pytest.raises(InvalidModel, match=said):
        read_gguf(write(tmp_path / "g.gguf", folder, change))
