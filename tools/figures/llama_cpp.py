"""Runs other engines, as ``make bench`` installs them, in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradecode_lab.measure.machine import usable_cores
from tools.peers.environments import LLAMA_CPP, Environment
from tools.peers.process import Worker
from tools.script import OUT

SECONDS = 600.0
"""The most seconds that one answer may take."""


def opened(environment: Environment, script: str, settings: Mapping[str, Any]) -> Worker | None:
    """Start a worker of ``tools/peers/workers`` with a loaded model.

    The result is None if it is not installed.
    """
    python = OUT / "envs" / environment.name / "bin" / "python"
    if not python.exists():
        return None
    worker = Worker(python, script, OUT / "logs" / f"{environment.name}-rows.log", {})
    worker.ask({"load": {"threads": usable_cores(), **settings}}, SECONDS)
    return worker


def open_rows(model: str, slots: int, sequences: int = 1) -> Worker | None:
    """Start a worker of llama.cpp that answers the requests which ``llama_cpp_rows.py`` lists.

    Args:
        model: path of a GGUF file.
        slots: number of K/V entries for all sequences together.
    """
    settings = {"model": model, "slots": slots, "sequences": sequences}
    return opened(LLAMA_CPP, "llama_cpp_rows.py", settings)
