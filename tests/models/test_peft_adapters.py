"""Folders with only a LoRA adapter of the peft package are merged at load."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import open_model
from tiny_folder import write_folder

Q = "base_model.model.model.layers.{}.self_attn.q_proj.{}.weight"
LENGTHS = Q.format(0, "lora_magnitude_vector").removesuffix(".weight")
EMBED = "base_model.model.model.embed_tokens.weight"


def write_adapter(folder, base, tensors, **settings):
    folder.mkdir(exist_ok=True)
    said = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps({**said, **settings}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def thin(rank=4, seed=0, layer=0):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((rank, 64)), random.standard_normal((64, rank))
    found = {"lora_A": a, "lora_B": b}
    return {Q.format(layer, name): value.astype(np.float32) for name, value in found.items()}


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 32}}, 8.0),
        ({"alpha_pattern": {"model.layers.1.self_attn.q_proj": 32}}, 2.0),
        ({"use_dora": True}, 2.0),
    ],
)
def test_the_formula(tmp_path, settings, scale):
    base = open_model(write_folder(tmp_path / "base", "llama"))
    tensors, lengths = thin(), np.linspace(1, 2, 64, dtype=np.float32)
    dora = {LENGTHS: lengths} if "use_dora" in settings else {}
    read = open_model(write_adapter(tmp_path / "a", tmp_path / "base", tensors | dora, **settings))
    a, b = (tensors[Q.format(0, name)] for name in ("lora_A", "lora_B"))
    wanted = base.weights["layers.0.q"].float32() + np.float32(scale) * (b @ a)
    found = read.weights["layers.0.q"].float32()
    if dora:
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), lengths, rtol=1e-5)
        wanted *= (lengths / np.linalg.norm(wanted, axis=1))[:, None]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    for name in ("layers.1.q", "layers.0.k", "embed"):
        np.testing.assert_array_equal(read.weights[name].data, base.weights[name].data)
    assert read.config.name == "a"
    assert read.config.tied_head


@pytest.mark.wide
def test_whole_tensors_replace_the_bases(tmp_path):
    write_folder(tmp_path / "base", "llama")
    base = load_file(tmp_path / "base" / "model.safetensors")["model.embed_tokens.weight"]
    embed = base + 1
    read = open_model(write_adapter(tmp_path / "a", "../base", {**thin(), EMBED: embed}))
    np.testing.assert_array_equal(read.weights["embed"].float32(), embed)
    assert not read.config.tied_head
    np.testing.assert_array_equal(read.weights["head"].float32(), base)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("tensors", "settings", "match"),
    [
        (thin(), {"base_model_name_or_path": None}, "adapter that names no base"),
        (thin(), {"base_model_name_or_path": "/nowhere/at/all"}, "only an adapter of /nowhere"),
        (thin(), {"peft_type": "PREFIX_TUNING"}, "adapter of the kind PREFIX_TUNING"),
        (thin(), {"use_dora": True}, "lora_magnitude_vector here"),
        ({**thin(), LENGTHS: np.ones(3, np.float32)}, {"use_dora": True}, "has 64 numbers"),
        ({**thin(), LENGTHS: np.ones(64, np.float32)}, {}, "no other part"),
        (thin(), {"use_qalora": True}, "use_qalora"),
        (thin(8), {}, "says rank 4"),
        ({Q.format(0, "lora_A"): np.ones((4, 64), np.float32)}, {}, "lora_A and lora_B here"),
        ({Q.format(7, n): v for n, v in zip(("lora_A", "lora_B"), thin().values())}, {}, "fits"),
        ({EMBED: np.ones((3, 64), np.float32)}, {}, "the base has"),
        ({"x.weight": np.ones(3, np.float32)}, {}, "nothing that it fits"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, tensors, settings, match):
    base = write_folder(tmp_path / "base", "llama")
    with pytest.raises(InvalidModel, match=match):
        open_model(write_adapter(tmp_path / "a", base, tensors, **settings))


@pytest.mark.wide
def test_an_adapter_of_an_adapter_is_refused(tmp_path):
    write_adapter(tmp_path / "a", tmp_path / "b", thin())
    write_adapter(tmp_path / "b", tmp_path / "a", thin())
    with pytest.raises(InvalidModel, match="is an adapter, too"):
        open_model(tmp_path / "a")


@pytest.mark.wide
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"k_proj": 5}},
        {"modules_to_save": ["embed_tokens"]}, {"use_dora": True},
        {"use_dora": True, "use_rslora": True}, {"target_modules": "all-linear"},
    ],
    ids=str,
)  # fmt: skip
def test_peft_merges_the_same(tmp_path, settings):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path / "base", "llama", model_type="llama")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    usual = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "down_proj"]}
    model = peft.get_peft_model(base, peft.LoraConfig(**{**usual, **settings}))
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "a")
    read = open_model(tmp_path / "a")
    merged = model.merge_and_unload().state_dict()
    for name, own in (
        ("model.layers.0.self_attn.q_proj", "layers.0.q"), ("model.embed_tokens", "embed"),
        ("lm_head", "head" if "head" in read.weights else "embed"),
        ("model.layers.1.self_attn.k_proj", "layers.1.k"),
        ("model.layers.1.mlp.down_proj", "layers.1.down"),
        ("model.layers.1.mlp.up_proj", "layers.1.up"),
    ):  # fmt: skip
        wanted = merged[f"{name}.weight"].numpy()
        np.testing.assert_allclose(read.weights[own].float32(), wanted, rtol=1e-5, atol=1e-5)
