"""Decides whether rounding explains the first difference of two outputs, or whether it is a bug.

Two tokens whose scores are closer than the rounding of the arithmetic are a near tie: they may
change places when a row is computed together with others. That rounding is measured. The row of the
first difference is computed in four ways that are mathematically equal, and its best logits are
compared. The ways are:

- row by row with a cache;
- row by row after a prompt that was computed in pieces;
- in one forward over the text;
- in one forward over a longer text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TARGET, Reply, TokenSequence
from paradecode.core.noise import gumbel
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.engine.engine import Engine
from paradecode_lab.measure.certificate.requests import request, rows_after, running, serve
from paradecode_lab.measure.serving import WatchedPlain
from paradecode_lab.measure.speeds import first_difference

AHEAD = 8
"""Number of rows after the row in question, like the rows of a draft."""
PIECE = 7
"""Number of rows in a step when the prompt is computed in pieces."""
COMPARED = 64
"""Number of the row's best logits whose rounding is measured."""


@dataclass(frozen=True)
class FirstDifference:
    """The first difference of one output from plain decoding's output.

    Attributes:
        prompt, temperature: name of the prompt, and temperature of the request.
        position: index of the output token, from 0.
        expected, got: token ids of plain decoding and of the output; None if the output ended
            before.
        top: the two best tokens under plain decoding.
        top_gap: difference between the logits of these two tokens.
        gap: how much plain decoding preferred ``expected`` to ``got``, in logits at temperature 0,
            and in logits / temperature + noise above 0.
        rounding: the largest difference between values of one logit that were computed in different
            ways.
        near_tie: whether ``gap`` is within twice the rounding (on the same scale). True is an
            explanation, not a proof; False means that rounding cannot explain the difference.
        error: why there is no output; empty if there is one.
    """

    prompt: str
    temperature: float
    position: int
    expected: int | None
    got: int | None
    top: tuple[int, ...] = ()
    top_gap: float | None = None
    gap: float | None = None
    rounding: float | None = None
    near_tie: bool = False
    error: str = ""


@dataclass
class LastRow:
    """Remembers the logits of plain decoding's last row, and the tokens before it.

    Attributes:
        ids: int32 [K], token ids whose logits are kept.
        values: float64 [K], their logits.
        top: ids of the two best tokens.
        top_gap: difference between the logits of these two tokens.
        tokens: ids of the tokens before the row.
    """

    ids: NDArray[np.int32]
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    top: tuple[int, ...] = ()
    top_gap: float = 0.0
    tokens: tuple[int, ...] = ()

    def see(self, seq: TokenSequence, reply: Reply) -> None:
        row = reply.logits.select([0])
        self.values = row.gather(self.ids[None, :])[0].astype(np.float64)
        best, logits = row.top_k(2)
        self.top = tuple(best[0].tolist())
        self.top_gap = float(logits[0, 0]) - float(logits[0, -1])
        self.tokens = tuple(seq.tokens.tolist())


def explain(
    engine: Engine,
    name: str,
    prompt: tuple[int, ...],
    params: SamplingParams,
    wanted: Sequence[int],
    got: Sequence[int],
) -> FirstDifference | None:
    """Explain where an output first differs from plain decoding's; None if both are equal."""
    at = first_difference(wanted, got)
    if at is None:
        return None
    expected = wanted[at] if at < len(wanted) else None
    other = got[at] if at < len(got) else None
    if expected is None or other is None:
        return FirstDifference(name, params.temperature, at, expected, other)
    text = [*prompt, *wanted[:at]]
    longer = [*text, *wanted[at : at + AHEAD]]
    backend = engine.models[TARGET]
    whole = rows_after(backend, text, [len(text)])
    best, _ = whole.top_k(COMPARED)
    ids = np.array([expected, other, *best[0].tolist()], np.int32)
    last, pieces = LastRow(ids), LastRow(ids)
    again = SamplingParams(max_tokens=at + 1, temperature=params.temperature, seed=params.seed)
    with running(engine, batch=1, prefix_cache=False):
        serve(engine, [request(prompt, lambda: WatchedPlain(last.see), again)])
    with running(engine, batch=1, prefix_cache=False, step_tokens=PIECE):
        serve(engine, [request(prompt, lambda: WatchedPlain(pieces.see), again)])
    ways = [last.values, whole.gather(ids[None, :])[0]]
    ways.append(rows_after(backend, longer, [len(text)]).gather(ids[None, :])[0])
    if pieces.tokens == last.tokens:  # If the tokens differ, the request diverged before this row.
        ways.append(pieces.values)
    rounding = float(np.ptp(np.array(ways, np.float64), axis=0).max())
    scores, scale = last.values, 1.0
    if params.temperature > 0.0:
        scale = params.temperature
        sampler = Sampler(params, np.array(prompt, np.int32), ())
        scores = scores[:2] / scale + gumbel(sampler.noise_key(at), ids[:2])
    gap = float(scores[0] - scores[1])
    return FirstDifference(
        prompt=name,
        temperature=params.temperature,
        position=at,
        expected=expected,
        got=other,
        top=last.top,
        top_gap=last.top_gap,
        gap=gap,
        rounding=rounding,
        near_tie=rounding > 0.0 and abs(gap) <= 2.0 * rounding / scale,
    )
