"""Every family's logits equal transformers' (folders) and llama.cpp's (GGUF)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import (
    CASES,
    FORMS,
    TOKENS,
    VOCABULARY,
    LlamaCppLogits,
    logits_of,
    random_tensors,
    save_folder,
    save_seeing,
    write_family,
    write_gemma4,
)
from gguf_writing import write_gguf
from huggingface_hub import errors
from state_files import FILES, write_states

from paradecode import LLM
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidModel
from paradecode.models.config import uniform
from paradecode.models.families import FAMILIES
from paradecode.models.folder_config import folder_config
from paradecode.models.gguf_file import read_gguf
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import Mixture
from paradecode.models.safetensors_dir import read_weights
from tiny_gemma import CONFIG, TEXT

SEEING = ("Gemma3", "Gemma4", "Mistral3", "Qwen3_5")
"""Models that also see pictures, of which the text part opens."""
FOLDERS = {name: case for name, case in {**CASES, **FORMS}.items() if case.folder is not None}
GGUF = [name for name, case in CASES.items() if case.gguf is not None]


def test_every_family_has_a_case() -> None:
    assert {family.name for family in FAMILIES} == {*CASES, "diffusion-gemma"}
    for family in FAMILIES:
        if family.name not in ("gemma4", "diffusion-gemma", *FILES):  # Tests of their own.
            assert bool(family.gguf) == (CASES[family.name].gguf is not None), family.name


def test_nulls_of_diffusion_gemma_mean_what_its_class_makes_of_them() -> None:
    known = pytest.importorskip("transformers").DiffusionGemmaTextConfig
    unused = {"attention_dropout", "initializer_range", "model_type", "pad_token_id",
              "tie_word_embeddings", "num_global_key_value_heads"}  # fmt: skip
    for key in {*TEXT, "per_layer_config"} - unused:
        text = {**TEXT, key: None}
        raw = Metadata({**CONFIG, "text_config": text})
        try:
            wanted = known(**text)
        except errors.StrictDataclassFieldValidationError:
            wanted = None
        if wanted is None or key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            with pytest.raises(InvalidModel, match=key):  # No model is without experts.
                folder_config(Path(), raw)
            continue
        config = folder_config(Path(), raw)
        windows = [kind == "sliding_attention" for kind in wanted.layer_types]
        assert [bool(part.window) for _, part in config.attentions()] == windows, key
        far = config.stack[-1].attention
        assert far is not None
        assert far.rope is not None
        assert far.rope.theta == wanted.rope_parameters["full_attention"]["rope_theta"], key
        assert config.bos_token == wanted.bos_token_id, key
        assert [*config.eos_tokens] == [wanted.eos_token_id] * (key != "eos_token_id"), key


@pytest.mark.parametrize("family", [*FOLDERS, *SEEING])
def test_folders_are_read_as_transformers_reads_them(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from paradecode.backends.torch.backend import TorchBackend

    save = save_seeing if family in SEEING else lambda name, to: save_folder(FOLDERS[name], to)
    model = save(family, tmp_path)
    with torch.no_grad():
        wanted = model(input_ids=torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].numpy()
    assert wanted.std() > 0.05
    near = 1e-5 * np.abs(wanted).max()
    config, weights = read_weights(tmp_path)
    assert np.abs(logits_of(TorchBackend(config, weights), 33) - wanted).max() < near
    native = NativeBackend(config, weights, dtype="f32", kv_dtype="f32")
    found = logits_of(native, 33)
    assert np.abs(found - wanted).max() < near
    np.testing.assert_array_equal(found, logits_of(native))


@pytest.mark.parametrize("family", GGUF)
def test_gguf_files_are_read_as_llama_cpp_reads_them(tmp_path: Path, family: str) -> None:
    write_family(tmp_path / "m.gguf", family)
    check_gguf(tmp_path / "m.gguf", 1e-3 if CASES[family].gelu else 1e-5)


@pytest.mark.parametrize("family", FILES)
def test_gguf_files_with_states_are_read_as_llama_cpp_reads_them(
    tmp_path: Path, family: str
) -> None:
    config = write_states(tmp_path / "m.gguf", family)
    assert config.keeps_states
    check_gguf(tmp_path / "m.gguf", 1e-5)


def test_mixtral_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    """Its GGUF files have the architecture of Llama, and experts."""
    config = uniform(
        "x", "llama", VOCABULARY, 64, 2, 4, 2, 16, 80, context_length=512,
        mixture=Mixture(5, 2, 80, normalised=True),
    )  # fmt: skip
    write_gguf(tmp_path / "m.gguf", config, random_tensors(config))
    check_gguf(tmp_path / "m.gguf", 1e-5)


@pytest.mark.parametrize(("gain", "sizes"), [(0.3, (1,)), (0.01, (1, 7, 30, len(TOKENS)))])
def test_gemma4_is_read_as_llama_cpp_reads_it(
    tmp_path: Path, gain: float, sizes: tuple[int, ...]
) -> None:
    write_gemma4(tmp_path / "m.gguf", gain)
    check_gguf(tmp_path / "m.gguf", 1e-3, sizes)


def check_gguf(path: Path, near: float, sizes: tuple[int, ...] = (1, 7, 30, len(TOKENS))) -> None:
    """Compare the core's logits with llama.cpp's, within ``near`` of the largest logit.

    Args:
        sizes: lengths of the texts whose last row is compared.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = read_gguf(path)
    there = LlamaCppLogits(path)
    here = logits_of(NativeBackend(made.config, made.weights, dtype="f32", kv_dtype="f32"))
    for size in sizes:
        logits = here[size - 1].astype(np.float64)
        own = logits - np.logaddexp.reduce(logits)
        difference = np.abs(own - there.log_probabilities(TOKENS[:size])).max()
        largest = max(1.0, np.abs(logits).max())
        assert difference < near * largest, size


@pytest.mark.parametrize(("family", "change", "named"), [
    ("gemma3", {"hidden_activation": "tanh"}, "hidden_activation"),
    ("gemma3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 6}, "layer_types"),
    ("gemma2", {"sliding_window": -4}, "window"), ("gemma2", {"head_dim": None}, "head_dim"),
    ("gemma4", {"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
    ("gemma4", {"hidden_size_per_layer_input": 1 << 40}, "size"),
    ("smollm3", {"no_rope_layers": [1, 2]}, "no_rope_layers"),
    ("granite", {"residual_multiplier": float("nan")}, "residual_multiplier"),
    ("granite", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("phi3", {"num_attention_heads": 0}, "num_attention_heads"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("gpt-oss", {"swiglu_limit": 3.0}, "swiglu_limit"),
    ("gpt-oss", {"num_experts_per_tok": 9}, "chosen"),
    ("olmo2", {"intermediate_size": 81}, "implies"),
])  # fmt: skip
def test_contradicting_facts_are_refused(
    tmp_path: Path, family: str, change: dict[str, Any], named: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    save_folder(CASES[family], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | change), "utf-8")
    with pytest.raises(InvalidModel, match=named):
        read_weights(tmp_path)


def test_a_tensor_that_no_layer_has_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    save_folder(CASES["granite"], tmp_path)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.extra.weight"):
        save_file(tensors | {name: np.zeros(64, np.float32)}, tmp_path / "model.safetensors")
        with pytest.raises(InvalidModel, match="tensor"):
            read_weights(tmp_path)


def test_the_module_of_a_hybrid_file_drafts_for_its_model(tmp_path: Path) -> None:
    write_states(tmp_path / "model.gguf", "qwen35")
    asked = f"mtp(head='{tmp_path / 'model.gguf'}',budget=fixed)"
    accepted = 0
    plain, drafting = (LLM(tmp_path / "model.gguf", decoder=name) for name in ("plain", asked))
    for prompt in ("a", "hello", "once upon a time"):
        found = drafting.complete(prompt, max_tokens=48)
        assert found.token_ids == plain.complete(prompt, max_tokens=48).token_ids
        accepted += found.stats.accepted
    assert accepted > 0
