"""The reference trajectory of canvas decoding by the book: one token a forward, no cache.

Every forward computes every row anew, and the ends of an output are decided here, so that a mistake
of the engine or of the loop cannot hide in the reference it is compared with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Backend, Span
from paradecode.core.logits import Bias, Logits
from paradecode.core.noise import MASK64, key, mix
from paradecode.core.sampling import SamplingParams
from paradecode.models.config import ModelConfig
from paradecode.testing.reference import Outcome
from paradecode.testing.toy import letter

USUAL_BLOCK = 32
Entry = tuple[int, float, tuple[int, ...], tuple[float, ...]]
"""A decided token, its log-probability, and the best tokens with theirs."""


def static(
    backend: Backend, prompt: Sequence[int], params: SamplingParams, block_length: int = 0
) -> Outcome:
    """What ``static`` gives: in each block the most confident masked position, one a forward.

    Args:
        backend: with memory reserved.
        block_length: 0 is the model's own, or 32.
    """
    config, start = backend.config, len(prompt)
    length = min(params.max_tokens, config.context_length - start)
    end, origin = start + length, start
    if config.attention == "block":
        size = config.block_length
        end = min(math.ceil(end / size) * size, config.context_length)
        origin = start // size * size
    step = block_length or config.block_length or USUAL_BLOCK
    known: dict[int, Entry] = {}
    while True:
        shown = _outcome([known[i] for i in _left(known, start)], config, params, start)
        if shown.finish_reason or len(known) == end - start:
            return shown
        first = next(i for i in range(start, end) if i not in known)
        until = min(origin + ((first - origin) // step + 1) * step, end)
        masked = [i for i in range(first, until) if i not in known]
        output = {i: entry[0] for i, entry in known.items()}
        row = [*prompt, *(output.get(i, config.mask_token or 0) for i in range(start, end))]
        logits = _forward(backend, row, [i - config.shift for i in masked])
        best: tuple[float, int, Entry] | None = None
        for index, position in enumerate(masked):
            raw = logits.select([index])
            allowed = raw.with_bias([_bias(raw, config, params, prompt, output, position - start)])
            seed = mix((params.seed or 0) & MASK64)
            token = int(allowed.sample(params.warp, [key(seed, position)])[0])
            sure = float(np.exp(allowed.log_probability(np.array([[token]]))[0, 0]))
            if best is None or sure > best[0]:
                best = sure, position, _entry(raw, token, params.logprobs)
        assert best is not None
        known[best[1]] = best[2]


def _left(known: dict[int, Entry], start: int) -> list[int]:
    at = start
    while at in known:
        at += 1
    return list(range(start, at))


def _forward(backend: Backend, row: Sequence[int], rows: Sequence[int]) -> Logits:
    config, count = backend.config, len(row)
    at = np.arange(count)
    block = {"full": count, "causal": 1}.get(config.attention, config.block_length)
    span = Span(
        pages=np.empty(0, np.int32),
        tokens=np.asarray(row, np.int32),
        positions=at.astype(np.int32),
        slots=np.full(count, -1, np.int32),
        context=0,
        mask=at[:, None] // block >= at[None, :] // block,
        logits=np.asarray(rows, np.int32),
    )
    return backend.forward([span])[0].logits


def _bias(
    raw: Logits,
    config: ModelConfig,
    params: SamplingParams,
    prompt: Sequence[int],
    output: dict[int, int],
    offset: int,
) -> Bias:
    added: dict[int, float] = dict(params.logit_bias or {})
    counts = Counter(output.values())
    seen = {*counts, *(prompt if params.repetition_penalty != 1.0 else ())}
    for token in sorted(seen):
        value = float(raw.gather(np.array([[token]]))[0, 0])
        factor = params.repetition_penalty
        change = (value / factor if value > 0 else value * factor) - value
        if counts[token]:
            change -= params.presence_penalty + params.frequency_penalty * counts[token]
        added[token] = added.get(token, 0.0) + change
    if offset < params.min_tokens:
        added |= dict.fromkeys(_ends(config, params), -math.inf)
    added[config.mask_token or 0] = -math.inf
    ids = np.fromiter(added.keys(), np.int32, len(added))
    return ids, np.fromiter(added.values(), np.float32, len(added))


def _ends(config: ModelConfig, params: SamplingParams) -> set[int]:
    return {*(() if params.ignore_eos else config.eos_tokens), *params.stop_token_ids}


def _entry(raw: Logits, token: int, count: int | None) -> Entry:
    if count is None:
        return token, 0.0, (), ()
    ids: NDArray[np.int32] = raw.top_k(max(count, 1))[0][:, :count]
    values = raw.log_probability(ids)[0].tolist()
    own = float(raw.log_probability(np.array([[token]]))[0, 0])
    return token, own, tuple(ids[0].tolist()), tuple(values)


def _outcome(
    entries: Sequence[Entry], config: ModelConfig, params: SamplingParams, start: int
) -> Outcome:
    """The output as far as it is known; an empty reason if it goes on."""
    text, reason, kept = "", "", 0
    for kept, (token, *_) in enumerate(entries, 1):
        if token in _ends(config, params):
            reason = "stop"
            break
        text += letter(token)
        found = [text.index(stop) for stop in params.stop if stop in text]
        if found:
            text, reason = text[: min(found)], "stop"
            break
        if kept == params.max_tokens or start + kept == config.context_length:
            reason = "length"
            break
    shown = entries[:kept]
    logged = shown if params.logprobs is not None else ()
    return Outcome(
        tuple(entry[0] for entry in shown),
        reason,
        text,
        tuple(entry[1] for entry in logged),
        tuple(entry[2] for entry in logged),
        tuple(entry[3] for entry in logged),
    )
