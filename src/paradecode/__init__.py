"""Paradecode: parallel decoding of language models.

from paradecode import LLM
print(LLM().chat("What is speculative decoding?").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from paradecode import moved as moved

if TYPE_CHECKING:
    from paradecode.completion import Chunk, Completion
    from paradecode.core.errors import ParadecodeError
    from paradecode.core.result_table import ResultTable
    from paradecode.core.sampling import SamplingParams
    from paradecode.llm import LLM
    from paradecode.timing.comparison import compare

    def methods() -> ResultTable:
        """Return a table of all methods; see :mod:`paradecode.methods`, which can be called."""


__all__ = [
    "LLM", "Chunk", "Completion", "ParadecodeError", "SamplingParams", "__version__", "compare",
    "methods",
]  # fmt: skip
__version__ = "0.2.0"

_PLACES = {
    "LLM": "paradecode.llm",
    "Chunk": "paradecode.completion",
    "Completion": "paradecode.completion",
    "ParadecodeError": "paradecode.core.errors",
    "SamplingParams": "paradecode.core.sampling",
    "compare": "paradecode.timing.comparison",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use; a process that compiles a grammar needs no model."""
    if name == "methods":  # A package that can be called.
        return import_module("paradecode.methods")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
