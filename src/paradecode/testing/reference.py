"""Plain decoding by the book: no engine, no cache, no batch, no draft.

The whole text is fed again for every token, and the ends of an output are decided here anew, so
that a mistake of the engine cannot hide in the reference it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paradecode.backends.interface import Backend, Span
from paradecode.core.constraint import Constraint
from paradecode.core.logits import Logits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.testing.toy import letter


@dataclass(frozen=True)
class Outcome:
    """What a request must give.

    Attributes:
        tokens, finish_reason, text: of the output; a letter per token that is no stop token.
        logprobs: of each token, when asked for.
        top_ids, top_logprobs: of the best tokens at each position, when asked for.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    text: str
    logprobs: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]


def fresh_logits(backend: Backend, tokens: Sequence[int]) -> Logits:
    """One row: what follows ``tokens``, from one forward that neither reads nor writes a slot."""
    count = len(tokens)
    span = Span(
        pages=np.empty(0, np.int32),
        tokens=np.asarray(tokens, np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=np.full(count, -1, np.int32),
        context=0,
        logits=np.array([count - 1], np.int32),
    )
    return backend.forward([span])[0].logits


def plain(
    backend: Backend,
    prompt: Sequence[int],
    params: SamplingParams,
    constraint: Constraint | None = None,
) -> Outcome:
    """What plain decoding of ``prompt`` gives on a backend with memory reserved."""
    config = backend.config
    ends = {*(() if params.ignore_eos else config.eos_tokens), *params.stop_token_ids}
    matcher = None if constraint is None else constraint.follow(sorted(ends))
    sampler = Sampler(params, np.asarray(prompt, np.int32), sorted(ends), matcher)
    output: list[int] = []
    text, reason = "", ""
    logprobs, top_ids, top_values = [], [], []
    while not reason:
        logits = fresh_logits(backend, [*prompt, *output])
        token = sampler.token(logits, 0)
        sampler.advance([token])
        output.append(token)
        if params.logprobs is not None:
            ids, _ = logits.top_k(max(params.logprobs, 1))
            best = ids[0, : params.logprobs]
            logprobs.append(float(logits.log_probability(np.array([[token]]))[0, 0]))
            top_ids.append(tuple(best.tolist()))
            top_values.append(tuple(logits.log_probability(best[None, :])[0].tolist()))
        if token in ends:
            reason = "stop"
            break
        text += letter(token)
        found = [text.index(stop) for stop in params.stop if stop in text]
        if found:
            text, reason = text[: min(found)], "stop"
        elif matcher is not None and matcher.complete(()):
            reason = "stop"
        elif len(output) == params.max_tokens or len(prompt) + len(output) == config.context_length:
            reason = "length"
    return Outcome(
        tuple(output), reason, text, tuple(logprobs), tuple(top_ids), tuple(top_values)
    )  # fmt: skip
