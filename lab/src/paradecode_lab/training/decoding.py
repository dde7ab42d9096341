"""Decode many prompts in the engine, each with its own decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Decoder
from paradecode.core.sampling import SamplingParams
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM

Progress = Callable[[int, int], None]
"""A function that is called with the number of items done and the number of all items."""
TOGETHER = 64
"""Number of requests that the engine decodes at the same time. More requests need more memory."""


def decode_all(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    decoder: Callable[[int], Decoder],
    params: Sequence[SamplingParams],
    progress: Progress,
    together: int = TOGETHER,
    salt: str = "",
    forks: int = 0,
) -> list[LiveSequence]:
    """Decode all prompts, ``together`` at a time, each with its own decoder and parameters.

    Args:
        decoder: makes the decoder of the prompt with this index.
        params: the parameters of each prompt.
        progress: called after each batch.
        together: number of requests in the engine at the same time.
        salt: requests share cached prefixes only with requests of the same salt.
        forks: the most forks that a request keeps at a time.

    Returns:
        The finished sequences, in the order of the prompts.

    Raises:
        Exception: the error of a request, if one failed.
    """
    done: list[LiveSequence] = []
    for first in range(0, len(prompts), together):
        live = []
        try:
            for number in range(first, min(first + together, len(prompts))):
                ids: NDArray[np.int32] = np.array(prompts[number], np.int32)
                own = partial(decoder, number)
                request = GenerationRequest(ids, own, params[number], salt=salt, forks=forks)
                live.append(llm.engine.add(request))
            while not all(sequence.finished for sequence in live):
                llm.engine.step()
        finally:
            for sequence in live:
                llm.engine.cancel(sequence)
        for sequence in live:
            if sequence.error is not None:
                raise sequence.error
        done += live
        progress(len(done), len(prompts))
    return done
