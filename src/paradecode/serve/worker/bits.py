"""Name a worker's arithmetic. Only workers that compute the same bits may continue an output."""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path

import numpy as np

from paradecode import __version__
from paradecode.llm import LLM
from paradecode.serve.worker.settings import WorkerSettings

PROBE = 32
"""Number of tokens of the fixed prompt whose continuation identifies the arithmetic."""


def bits(llm: LLM, settings: WorkerSettings) -> str:
    """Return a name for the exact results that this worker computes.

    It is a digest of versions, backend, processor, and the tokens and log-probabilities that the
    model gives for a fixed prompt.
    """
    try:
        flags = re.findall(r"^(?:model name|flags|Features)\s*:.*$", _processor(), re.MULTILINE)
    except OSError:
        flags = [platform.processor()]
    made = [__version__, np.__version__, settings.backend, settings.dtype, settings.device]
    kernels = getattr(llm.backend, "instruction_set", ("",))[0]
    parts = [*made, type(llm.backend).__name__, kernels, platform.machine(), *sorted({*flags})]
    found = hashlib.sha256("\n".join(parts).encode() + repr(llm.config).encode())
    length = min(PROBE, llm.config.context_length // 2)
    tokens = np.linspace(0, llm.config.vocab_size - 1, length).astype(int).tolist()
    (made_of_it,) = llm.complete(
        [tokens], decoder=None, max_tokens=4, temperature=0, logprobs=8, ignore_eos=True
    )
    found.update(repr((made_of_it.token_ids, made_of_it.logprobs)).encode())
    return found.hexdigest()[:16]


def _processor() -> str:
    return Path("/proc/cpuinfo").read_text()
