"""Every family's logits equal transformers' (folders) and llama.cpp's (GGUF)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from family_models import CASES, TOKENS, LlamaCppLogits, logits_of, save_folder, write_family

from paradecode.backends.native.backend import NativeBackend
from paradecode.models.families import FAMILIES
from paradecode.models.gguf_file import read_gguf
from paradecode.models.safetensors_dir import read_weights

UNPROVED = ("gemma4",)
"""Families whose GGUF files are not compared with llama.cpp's reading."""
FOLDERS = [name for name, case in CASES.items() if case.folder is not None]
GGUF = [name for name, case in CASES.items() if case.gguf is not None]


def test_every_family_has_a_case() -> None:
    assert [family.name for family in FAMILIES] == sorted(
        CASES, key=[family.name for family in FAMILIES].index
    )
    for family in FAMILIES:
        if family.name not in UNPROVED:
            assert bool(family.gguf) == (CASES[family.name].gguf is not None), family.name


@pytest.mark.parametrize("family", FOLDERS)
def test_folders_are_read_as_transformers_reads_them(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from paradecode.backends.torch.backend import TorchBackend

    model = save_folder(CASES[family], tmp_path)
    with torch.no_grad():
        wanted = model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].numpy()
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = read_gguf(tmp_path / "m.gguf")
    there = LlamaCppLogits(tmp_path / "m.gguf")
    here = logits_of(NativeBackend(made.config, made.weights, dtype="f32", kv_dtype="f32"))
    for size in (1, 7, 30, len(TOKENS)):
        logits = here[size - 1].astype(np.float64)
        own = logits - np.logaddexp.reduce(logits)
        difference = np.abs(own - there.log_probabilities(TOKENS[:size])).max()
        largest = max(1.0, np.abs(logits).max())
        assert difference < (1e-3 if CASES[family].gelu else 1e-5) * largest, size
