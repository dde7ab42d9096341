"""Paradecode: parallel decoding of language models.

from paradecode import LLM
print(LLM().chat([{"role": "user", "content": "What is speculative decoding?"}]).text)
"""

from paradecode.completion import Chunk, Completion
from paradecode.core.errors import ParadecodeError
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM

__all__ = ["LLM", "Chunk", "Completion", "ParadecodeError", "SamplingParams", "__version__"]
__version__ = "0.2.0"
