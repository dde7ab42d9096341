"""Workers have the same name of their arithmetic only if they may continue each other's streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from paradecode.backends.native import _core
from paradecode.llm import LLM
from paradecode.serve.worker import bits as module
from paradecode.serve.worker.settings import WorkerSettings
from tiny_folder import write_folder


def bits(folder: Path, threads: int = 1) -> str:
    with LLM(folder, threads=threads) as llm:
        return module.bits(llm, WorkerSettings())


@pytest.mark.parametrize("kind", ["llama", "sdar"])
def test_what_computes_other_bits_has_another_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path, kind)
    names = [bits(folder)]
    assert bits(folder, threads=2) == names[0]
    if len(_core.available_isas()) < 2:
        pytest.skip("this build has one kernel set for this processor")
    with monkeypatch.context() as changed:
        changed.setenv("PARADECODE_ISA", "portable")
        names.append(bits(folder))
    with monkeypatch.context() as changed:
        changed.setattr(module, "_processor", lambda: "flags\t: fpu other")
        names.append(bits(folder))
    weights = load_file(folder / "model.safetensors")
    one = next(name for name in weights if "down" in name)
    weights[one] = weights[one] * 1.001
    save_file(weights, folder / "model.safetensors")
    names.append(bits(folder))
    assert len({*names}) == 4
