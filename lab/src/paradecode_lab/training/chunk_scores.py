"""Calibrate `atts`: record how unlikely the target finds the first chunks of its draft model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.search.strategies.atts import ChunkedSample, ChunkScores
from paradecode_lab.training.decoding import Progress, decode_all


def record_chunk_scores(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    chunk: int,
    temperature: float,
    seed: int,
    progress: Progress,
) -> ChunkScores:
    """Draft one chunk after each prompt, and return the scores of all chunks.

    Args:
        llm: a model with a draft model that has the target's tokens.
        prompts: token ids of different questions, similar to those that users will ask.
        chunk: the most tokens of a chunk.
        temperature, seed: settings of the draft model's sampling; searches must use the same
            temperature.
        progress: called after each batch.

    Raises:
        InvalidInput: without such a draft model, or for a parameter out of range.
    """
    readers = [ChunkedSample(chunk, 1, 0.0, None) for _ in prompts]
    params = [
        SamplingParams(
            max_tokens=chunk, temperature=temperature, seed=key(seed, at, Purpose.CHILD_SEED)
        )
        for at in range(len(prompts))
    ]
    decode_all(llm, prompts, readers.__getitem__, params, progress, forks=1)
    scores = np.array([reader.scores[0] for reader in readers], np.float32)
    return ChunkScores({"chunk": chunk, "count": len(scores)}, {"scores": scores})
