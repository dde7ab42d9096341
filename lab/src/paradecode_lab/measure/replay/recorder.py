"""Decodes a workload plainly, once, and keeps the target's distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Reply, Steps, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.draft.verifiers import coupled
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.replay.recording import MOST_TOP, Identity, Recording, Request, check
from paradecode_lab.measure.replay.timing import measure_timing
from paradecode_lab.measure.serving import finish

TOP = 16
"""Number of entries that are kept of each distribution: no method of this package reads more."""
TAIL = 16
"""Number of tokens that are recorded after a stop."""
CHUNK = 128
"""Number of prompt rows whose logits are held at once."""


def record(
    llm: LLM, items: Sequence[Item], params: SamplingParams | None = None, k: int = TOP
) -> Recording:
    """Decode ``items`` plainly with a loaded model, and return the recording.

    Args:
        params: sampling parameters; ``max_tokens`` is taken from each item. The default seed is 0.
        k: number of entries that are kept of each distribution.

    Raises:
        InvalidInput: a prompt or a setting cannot be used.
    """
    requests = tuple(recorded(llm.engine, items, params, k))
    return assembled(llm, requests, params, k)


def assembled(
    llm: LLM, requests: Sequence[Request], params: SamplingParams | None = None, k: int = TOP
) -> Recording:
    """Build a recording from the requests of :func:`recorded`, and measure the model's costs."""
    curve = llm.engine.load.curve
    if curve is None:
        raise InvalidInput("cost curve", None, "measure what a forward costs first")
    recording = Recording(
        Identity.of(llm.engine, llm.tokenizer), _seeded(params), curve,
        measure_timing(llm.engine, curve, requests, _seeded(params), k), tuple(requests),
    )  # fmt: skip
    check(recording)
    return recording


def recorded(
    engine: Engine, items: Sequence[Item], params: SamplingParams | None = None, k: int = TOP
) -> Iterator[Request]:
    """Decode one item after the other, and yield each request when it is done.

    The engine must be idle.
    """
    params = _seeded(params)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST_TOP:
        raise InvalidInput("k", k, f"give a whole number from 1 to {MOST_TOP}")
    if params.n != 1:
        raise InvalidInput("n", params.n, "record one output for each prompt")
    context = engine.config.context_length
    for item in items:
        prompt = np.array(item.token_ids, np.int32)
        own = replace(params, max_tokens=item.max_tokens)
        # The request has a tenant of its own, so that no row of the prompt is cached.
        salt = f"recording {uuid4()}"
        rows, sequence = _listen(engine, prompt, own, salt, k)
        output = np.array(sequence.output, np.int32)
        text, tail = np.concatenate([prompt, output]), []
        if sequence.finish_reason == "stop" and len(text) < context:
            # Noise depends on the position alone, so the same text would go on exactly like this.
            further = replace(
                params, max_tokens=TAIL, min_tokens=0, stop=(), stop_token_ids=(), ignore_eos=True
            )
            after, sequence = _listen(engine, text, further, salt, k)
            tail = sequence.output
            rows = [
                np.concatenate([mine, theirs[-len(tail) :]])
                for mine, theirs in zip(rows, after, strict=True)
            ]
        ids, logits, normalizers = rows
        yield Request(
            item.id, item.group, prompt, output, np.array(tail, np.int32),
            ids.astype(np.int32), logits.astype(np.float32), normalizers, item.max_tokens,
        )  # fmt: skip


def _listen(
    engine: Engine, prompt: NDArray[np.int32], params: SamplingParams, salt: str, k: int
) -> tuple[list[NDArray[Any]], LiveSequence]:
    """Return token ids, logits and normalizers after every token but the last, and the sequence."""
    listener = Listener(k)
    asked = GenerationRequest(prompt, lambda: listener, params, salt=salt)
    sequence = finish(engine, asked)
    return [np.concatenate(part) for part in zip(*listener.rows, strict=True)], sequence


class Listener:
    """Plain decoding that keeps the best tokens of each distribution, including the prompt's.

    Attributes:
        rows: one entry for each forward: ids [K, k], logits [K, k] and normalizers [K].
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self.rows: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            left = seq.pending
            part = left[:CHUNK]
            reply: Reply = yield Forward(part, logits=np.arange(len(part), dtype=np.int32))
            logits = reply.logits
            self.rows.append((*logits.top_k(self._k), logits.log_normalizer()))
            if len(part) == len(left):
                last = Reply(logits.select([len(part) - 1]))
                seq.commit(coupled(seq, EMPTY, last))


def _seeded(params: SamplingParams | None) -> SamplingParams:
    """Return the parameters with a seed, so that a replay draws the same noise as the recording.

    Some methods draw noise even at temperature 0.
    """
    params = params or SamplingParams()
    return replace(params, seed=0 if params.seed is None else params.seed, logprobs=None)
