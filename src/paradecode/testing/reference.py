"""The reference for exact methods: plain decoding, and canvases with one token a forward.

It uses no engine, no cache, no batch and no draft. It computes the whole text again for every
token, and decides the end of an output independently. So a mistake of the engine or of a loop
cannot also be in the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Backend, Span
from paradecode.core.constraint import Constraint
from paradecode.core.logits import Bias, Logits
from paradecode.core.noise import MASK64, key, mix
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.models.config import ModelConfig
from paradecode.testing.toy import letter

USUAL_BLOCK = 32
Entry = tuple[int, float, tuple[int, ...], tuple[float, ...]]
"""A decided token, its log-probability, the most likely tokens, and their log-probabilities."""


@dataclass(frozen=True)
class Outcome:
    """The right result of a request.

    Attributes:
        tokens, finish_reason, text: the output, why it ended, and its text, which has a letter for
            each token that is no stop token.
        logprobs: log-probability of each token, if the request wants them.
        top_ids, top_logprobs: the most likely tokens at each position, and their log-probabilities,
            if the request wants them.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    text: str
    logprobs: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]


def plain(
    backend: Backend,
    prompt: Sequence[int],
    params: SamplingParams,
    constraint: Constraint | None = None,
) -> Outcome:
    """Return the result of plain decoding on a backend whose memory is reserved."""
    ends = _ends(backend.config, params)
    matcher = None if constraint is None else constraint.follow(sorted(ends))
    sampler = Sampler(params, np.asarray(prompt, np.int32), sorted(ends), matcher)
    entries: list[Entry] = []
    while True:
        logits = fresh_logits(backend, [*prompt, *(token for token, *_ in entries)])
        token = sampler.token(logits, 0)
        sampler.advance([token])
        entries.append(_entry(logits, token, params.logprobs))
        complete = matcher is not None and token not in ends and matcher.complete(())
        shown = _outcome(entries, backend.config, params, len(prompt), complete)
        if shown.finish_reason:
            return shown


def static(
    backend: Backend, prompt: Sequence[int], params: SamplingParams, block_length: int = 0
) -> Outcome:
    """Return the result of ``static``. Each forward decides the block's most confident position.

    Args:
        backend: a backend whose memory is reserved.
        block_length: number of positions of a block; 0 means the model's own, or 32.
    """
    config, start = backend.config, len(prompt)
    length = min(params.max_tokens, config.context_length - start)
    end, origin = start + length, start
    if config.attention == "block":
        size = config.block_length
        end = min(math.ceil(end / size) * size, config.context_length)
        origin = start // size * size
    attends = {"full": end, "causal": 1}.get(config.attention, config.block_length)
    step = block_length or config.block_length or USUAL_BLOCK
    known: dict[int, Entry] = {}
    while True:
        first = next((i for i in range(start, end) if i not in known), end)
        shown = _outcome([known[i] for i in range(start, first)], config, params, start)
        if shown.finish_reason or first == end:
            return shown
        until = min(origin + ((first - origin) // step + 1) * step, end)
        masked = [i for i in range(first, until) if i not in known]
        output = {i: entry[0] for i, entry in known.items()}
        row = [*prompt, *(output.get(i, config.mask_token or 0) for i in range(start, end))]
        logits = fresh_logits(backend, row, [i - config.shift for i in masked], attends)
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


def fresh_logits(
    backend: Backend, row: Sequence[int], asked: Sequence[int] | None = None, block: int = 1
) -> Logits:
    """Return the logits of one forward that neither reads nor writes a slot.

    Args:
        asked: positions whose logits are returned; None means the last position.
        block: number of positions of a block. A position sees its own block, and the blocks before
            it.
    """
    at = np.arange(len(row))
    span = Span(
        pages=np.empty(0, np.int32),
        tokens=np.asarray(row, np.int32),
        positions=at.astype(np.int32),
        slots=np.full(len(row), -1, np.int32),
        context=0,
        mask=None if block == 1 else at[:, None] // block >= at[None, :] // block,
        logits=np.asarray([len(row) - 1] if asked is None else asked, np.int32),
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
    entries: Sequence[Entry],
    config: ModelConfig,
    params: SamplingParams,
    start: int,
    complete: bool = False,
) -> Outcome:
    """Return the output so far. ``finish_reason`` is empty if it has not ended.

    Args:
        complete: whether the constraint ends the output here.
    """
    most = min(params.max_tokens, config.context_length - start)
    shown = entries[:most]
    text, reason = "", ""
    for at, (token, *_) in enumerate(shown):
        if token in _ends(config, params):
            shown, reason = shown[: at + 1], "stop"
            break
        text += letter(token)
        found = [text.index(stop) for stop in params.stop if stop in text]
        if found:
            shown, text, reason = shown[: at + 1], text[: min(found)], "stop"
            break
    if not reason and (complete or len(shown) == most):
        reason = "stop" if complete else "length"
    logged = shown if params.logprobs is not None else ()
    return Outcome(
        tuple(entry[0] for entry in shown),
        reason,
        text,
        tuple(entry[1] for entry in logged),
        tuple(entry[2] for entry in logged),
        tuple(entry[3] for entry in logged),
    )
