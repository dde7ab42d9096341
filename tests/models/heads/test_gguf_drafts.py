"""Drafts in GGUF files, as llama.cpp's converter writes them, draft the same as their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradecode.backends.heads.run import run_head
from paradecode.core.errors import InvalidModel
from paradecode.core.head import HeadDraft, Memory
from paradecode.core.tree import TokenTree
from paradecode.models.config import Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.models.heads.gguf_drafts import _MODULE, _NAMES, _PARTS
from paradecode.models.heads.layouts import HeadFile
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network

CONFIG = uniform("t", "llama", 40, 16, 8, 2, 1, 8, 8, rope=Rope(dim=8))
HEADS = {"q_proj.weight": 2, "k_proj.weight": 1}
MASKED = ("dflash", "dspark", "dflash2")
WINDOW, PATTERN = "dflash.attention.sliding_window", "dflash.attention.sliding_window_pattern"
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
SIGHTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all": ({"is_causal": False}, {}),
    "windows": ({**SLIDING, "is_causal": False}, {WINDOW: 6, PATTERN: [True, False]}),
    "windows in order": (
        {**SLIDING, "is_causal": True},
        {WINDOW: 6, PATTERN: [True, False], "dflash.attention.causal": True},
    ),
    "in order": (
        {"layer_types": ["full_attention"] * 2, "is_causal": True},
        {"dflash.attention.causal": True},
    ),
    "late": ({"is_causal": False, "sample_from_anchor": False},
             {"dflash.sample_from_anchor": False}),
}  # fmt: skip
"""Further settings in z-lab's config.json, and the same ones in a GGUF file."""


def nothing(name: str) -> np.ndarray:
    raise InvalidModel(name, None, "this head needs nothing of the target")


def written(kind: str, folder: Path, sights: str = "all", **said: Any) -> Path:
    """Write a random head as a GGUF file, with the verifier's tensors as the head's own.

    The folder of a head on masks is one of z-lab's.

    Args:
        said: further settings of the GGUF file; None leaves one out.
    """
    random_head(kind, CONFIG, folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("verifier_lm_head.weight")
    tensors.pop("verifier_norm.weight")
    tensors.setdefault("lm_head.weight", head)
    architecture = "dflash" if kind in MASKED else kind
    writer = GGUFWriter(folder / "draft.gguf", architecture)
    writer.add_embedding_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(10000.0)
    writer.add_array(f"{architecture}.target_layers", [1, 8])
    writer.add_bool(f"{architecture}.norm_before_residual", False)
    if kind in MASKED:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        del config["speculators_model_type"]
        config |= {**config.pop("transformer_layer_config"), **SIGHTS[sights][0]}
        config["dflash_config"] = {"mask_token_id": config["mask_token_id"]}
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        given = {
            "dflash.block_size": 5, "dflash.block_count": 2, "tokenizer.ggml.mask_token_id": 1,
            **SIGHTS[sights][1],
        }  # fmt: skip
        if kind == "dflash2":
            for name in ("conv_kernel_size", "conv_group_size", "selector_top_k"):
                given[f"dflash.{name}"] = config[name]
        for name, value in (given | said).items():
            if isinstance(value, list):
                writer.add_array(name, value)
            elif isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, float):
                writer.add_float32(name, value)
            elif value is not None:
                writer.add_uint32(name, value)
    theirs = {ours: name for name, ours in {**_NAMES, **_PARTS}.items()}
    for name, values in tensors.items():
        part = name.removeprefix("layers.0.").removeprefix("layers.1.")
        if name == "d2t":
            absolute = (values + np.arange(len(values))).astype(np.int64)
            writer.add_tensor("d2t", absolute, raw_dtype=GGMLQuantizationType.I64)
            continue
        if kind == "eagle3" and part.startswith("self_attn.") and part[10:] in HEADS:
            split = values.reshape(HEADS[part[10:]], 2, 2, -1)  # Pairs come to lie side by side.
            values = split.swapaxes(1, 2).reshape(values.shape)
        stored = theirs[name] if part == name else (
            f"blk.{name.split('.')[1]}.{theirs[part.removesuffix('.weight')]}"
            + (".weight" if part.endswith(".weight") else "")
        )  # fmt: skip
        writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "draft.gguf"


def drafted(path: Path) -> TokenTree:
    head = build_head(read_head(path), CONFIG, nothing)
    random = np.random.default_rng(0)
    rows = random.standard_normal((12, head.enter.inputs["features"])).astype(np.float32)
    asked = HeadDraft(Memory(), rows, random.integers(0, 40, 12), 0, 12, 3, 4)
    (tree,) = run_head(head, [asked], apply_network)
    return tree


@pytest.mark.parametrize(("kind", "sights"), [
    ("eagle3", "all"), ("dflash", "all"), ("dflash", "windows"), ("dflash", "windows in order"),
    ("dflash", "in order"), ("dspark", "windows"), ("dspark", "late"), ("dflash2", "windows"),
])  # fmt: skip
def test_a_gguf_draft_drafts_what_its_folder_drafts(kind: str, sights: str, tmp_path: Path) -> None:
    file = written(kind, tmp_path, sights)
    trees = drafted(tmp_path), drafted(file)
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    assert np.array_equal(trees[0].parents, trees[1].parents)
    assert np.allclose(trees[0].estimates, trees[1].estimates, atol=1e-6)
    if sights != "all":  # The settings change something here.
        estimates = drafted(written(kind, tmp_path / "plain")).estimates
        assert not np.allclose(estimates, trees[1].estimates, atol=1e-3)


@pytest.mark.parametrize(("kind", "name", "value"), [
    ("dflash", PATTERN, None), ("dflash", PATTERN, [True]), ("dflash", PATTERN, [1, 2]),
    ("dflash", PATTERN, ["yes", "no"]), ("dflash", WINDOW, 4), ("dflash", "dflash.block_count", 3),
    ("dflash", "dflash.hyper_connection.count", 4), ("dflash", "dflash.attention.causal", 1),
    ("dflash", "dflash.rope.dimension_sections", [1, 1, 0, 0]),
    ("dflash2", "dflash.final_logit_softcapping", 30.0), ("dflash2", "dflash.logit_scale", 0.5),
    ("dflash2", "dflash.selector_top_k", None), ("dflash2", "dflash.conv_kernel_size", 0),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused_by_name(
    kind: str, name: str, value: Any, tmp_path: Path
) -> None:
    file = written(kind, tmp_path, "windows", **{name: value})
    with pytest.raises(InvalidModel) as error:
        build_head(read_head(file), CONFIG, nothing)
    assert error.value.field == name


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dflash2"])
def test_a_gguf_draft_that_ends_early_is_refused(kind: str, tmp_path: Path) -> None:
    file = written(kind, tmp_path)
    whole = file.read_bytes()
    for length in (0, 3, 30, 200, 600, len(whole) // 2, len(whole) - 40):
        file.write_bytes(whole[:length])
        with pytest.raises(InvalidModel):
            build_head(read_head(file), CONFIG, nothing)


def module_of_a_model(path: Path) -> tuple[HeadFile, dict[str, np.ndarray]]:
    """Write the published module of a Qwen3.5 model as a layer of a GGUF file.

    Returns:
        The module as its folder is read, and the tensors of the file.
    """
    folder = path.parent
    with safe_open(Path(__file__).parent / "mtp-qwen3.5.safetensors", "numpy") as stored:
        (folder / "config.json").write_text(stored.metadata()["config"])
        named = [name for name in dict.fromkeys(stored.keys()) if name.startswith("w.")]
        save_file({n[2:]: stored.get_tensor(n) for n in named}, folder / "model.safetensors")
        theirs = {ours: name for name, ours in _MODULE.items() if name != "ffn_norm"}
        tensors = {
            f"blk.2.{theirs[name[2:].removesuffix('.weight')]}.weight": stored.get_tensor(name)
            for name in named
        }
    # llama.cpp's converter adds the 1 to gains, and the final norm may be the model's.
    tensors = {name: 1 + each if each.ndim == 1 else each for name, each in tensors.items()}
    tensors["output_norm.weight"] = tensors.pop("blk.2.nextn.shared_head_norm.weight")
    return read_head(folder), {**tensors, "blk.0.attn_norm.weight": np.ones(16, np.float32)}


def write_module(path: Path, tensors: dict[str, np.ndarray], modules: int = 1) -> Path:
    writer = GGUFWriter(path, "qwen35")
    writer.add_block_count(3)
    writer.add_embedding_length(16)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(100.0)
    writer.add_uint32("qwen35.nextn_predict_layers", modules)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_module_of_a_whole_model_is_the_one_of_its_folder(tmp_path: Path) -> None:
    folder, tensors = module_of_a_model(tmp_path / "model.gguf")
    found = read_head(write_module(tmp_path / "model.gguf", tensors))
    assert found.tensors.keys() == folder.tensors.keys()
    for name, values in folder.tensors.items():
        assert np.allclose(found.tensors[name], values, atol=1e-6), name
    assert found.epsilon == np.float32(folder.epsilon)
    assert {**vars(found), "tensors": 0, "epsilon": 0} == {
        **vars(folder),
        "tensors": 0,
        "epsilon": 0,
    }


def test_modules_that_are_not_whole_are_refused_by_name(tmp_path: Path) -> None:
    _, tensors = module_of_a_model(tmp_path / "model.gguf")
    expert = {"blk.2.ffn_gate_exps.weight": np.zeros((2, 24, 16), np.float32)}
    lacking = {name: each for name, each in tensors.items() if "eh_proj" not in name}
    for field, given, modules in (
        ("qwen35.nextn_predict_layers", tensors, 0),
        ("blk.2.ffn_gate_exps.weight", tensors | expert, 1),
        ("tensors", lacking, 1),
    ):  # fmt: skip
        with pytest.raises(InvalidModel) as error:
            read_head(write_module(tmp_path / "model.gguf", given, modules))
        assert error.value.field == field


def test_other_gguf_files_are_refused_by_name(tmp_path: Path) -> None:
    for field, of in (("general.architecture", "llama"), ("eagle3.target_layers", "eagle3")):
        writer = GGUFWriter(tmp_path / "x.gguf", of)
        writer.add_tensor("fc.weight", np.zeros((16, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(InvalidModel) as error:
            read_head(tmp_path / "x.gguf")
        assert error.value.field == field
