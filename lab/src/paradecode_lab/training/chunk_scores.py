"""Calibrates `atts`: how unlikely the target finds first chunks of its draft model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.search.atts import ChunkedSample, ChunkScores
from paradecode_lab.training.decoding import Progress, decode_all


def record_chunk_scores(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    chunk: int,
    temperature: float,
    seed: int,
    progress: Progress,
) -> ChunkScores:
    """The score of one chunk of each prompt.

    Args:
        llm: a model with a draft model that has the target's tokens.
        prompts: token ids of different questions, of the kind that will be asked.
        chunk: the most tokens of a chunk.
        temperature, seed: settings of the draft model's draws; searches will use the same.

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
