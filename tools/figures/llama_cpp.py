"""llama.cpp as ``make bench`` installs it, in a process of its own, for single forwards."""

from __future__ import annotations

from paradecode_lab.measure.machine import usable_cores
from tools.peers.environments import LLAMA_CPP
from tools.peers.process import Worker
from tools.script import OUT

PYTHON = OUT / "envs" / LLAMA_CPP.name / "bin" / "python"
SECONDS = 600.0
"""Seconds that one answer may take."""


def open_rows(model: str, slots: int, sequences: int = 1) -> Worker:
    """A worker that answers what ``tools/peers/workers/llama_cpp_rows.py`` lists.

    Args:
        model: GGUF file.
        slots: K/V entries of all sequences together.
    """
    worker = Worker(PYTHON, "llama_cpp_rows.py", OUT / "logs" / "llama-cpp-rows.log", {})
    settings = {"model": model, "slots": slots, "sequences": sequences, "threads": usable_cores()}
    worker.ask({"load": settings}, SECONDS)
    return worker
