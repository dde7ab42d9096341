"""Compares answers token by token: plain with plain first, then plain with speculative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan

from paradecode_lab.measure.certificate.servers.sides import (
    DraftCount,
    RemoteAsk,
    RemoteOutput,
    Side,
    drafts_by_time,
)

SHORT, LONG = 0.25, 1.5
"""Factors of the limit when plain decoding is asked for shorter and longer answers."""
STREAMED = 4
"""Number of requests that are streamed if the server counts no drafts."""


@dataclass(frozen=True)
class ServedCase:
    """A named request, whose answers are compared."""

    name: str
    ask: RemoteAsk


@dataclass(frozen=True)
class ServedDifference:
    """The first difference of an answer from the plain one.

    Attributes:
        case: name of the request.
        position: index of the part (token, or character if the server names no tokens).
        expected, got: the parts; empty for the end of the answer.
        gap: difference between plain decoding's two best log-probabilities there; NaN if unknown.
        moves: whether plain decoding itself differs first at this place.
        near_tie: whether the gap is within twice the noise of plain decoding's log-probabilities,
            so that plain decoding could differ there as well.
    """

    case: str
    temperature: float
    position: int
    expected: str
    got: str
    gap: float
    moves: bool = False
    near_tie: bool = False


@dataclass(frozen=True)
class SidesCompared:
    """Answers to the same requests, asked for in another way or from the other side.

    Attributes:
        noise: the largest change of a token's log-probability before the first difference; NaN if
            the server gives none.
        drafts: the drafts of these answers, if they are known.
    """

    way: str
    runs: int
    differences: tuple[ServedDifference, ...]
    noise: float
    drafts: DraftCount | None = None

    @property
    def equal(self) -> int:
        return self.runs - len(self.differences)


def compare_sides(
    plain: Side,
    drafting: Side,
    cases: Sequence[ServedCase],
    parallel: int,
    ended: Callable[[], None] = lambda: None,
) -> tuple[list[SidesCompared], list[SidesCompared]]:
    """Return how plain answers differ from plain ones, and speculative ones from plain ones.

    The plain answers that were asked for one at a time are those with which all are compared.
    """
    asks = [case.ask for case in cases]
    expected = plain.run(asks, 1, ended).outputs

    def found(side: Side, way: str, at_once: int, factor: float = 1.0) -> SidesCompared:
        limited = [replace(a, max_tokens=max(1, round(factor * a.max_tokens))) for a in asks]
        run = side.run(limited, at_once, ended)
        pairs = list(zip(cases, expected, run.outputs, strict=True))
        differences = [d for d in (first_difference(*pair) for pair in pairs) if d is not None]
        noise = [_noise(wanted, got) for _, wanted, got in pairs]
        known = [value for value in noise if value == value]
        return SidesCompared(
            way, len(cases), tuple(differences), max(known, default=nan), run.drafts
        )

    noise = [
        found(plain, "again", 1), found(plain, f"{parallel} at a time", parallel),
        found(plain, "short", parallel, SHORT), found(plain, "long", parallel, LONG),
    ]  # fmt: skip
    moving = {(d.case, d.temperature, d.position) for way in noise for d in way.differences}
    rounding = max((way.noise for way in noise if way.noise == way.noise), default=0.0)
    tested = []
    for way in (found(drafting, "one at a time", 1),
                found(drafting, f"{parallel} at a time", parallel)):  # fmt: skip
        differences = tuple(
            replace(
                each, moves=(each.case, each.temperature, each.position) in moving,
                near_tie=each.gap <= 2.0 * rounding,
            )
            for each in way.differences
        )  # fmt: skip
        drafts = way.drafts or drafts_by_time(plain, drafting, asks[:STREAMED])
        tested.append(replace(way, differences=differences, drafts=drafts))
    return noise, tested


def first_difference(
    case: ServedCase, wanted: RemoteOutput, got: RemoteOutput
) -> ServedDifference | None:
    """Return where an answer first differs from the plain one; None as far as both go if nowhere.

    An answer that ended at its limit is only compared up to there.
    """
    for at, (one, other) in enumerate(zip(wanted.parts, got.parts)):
        if one != other:
            gap = wanted.gaps[at] if at < len(wanted.gaps) else nan
            words = one.decode("utf-8", "replace"), other.decode("utf-8", "replace")
            return ServedDifference(case.name, case.ask.temperature, at, *words, gap)
    return None


def _noise(wanted: RemoteOutput, got: RemoteOutput) -> float:
    """Return the largest change of a log-probability as long as the tokens are the same."""
    changes = []
    for at, (one, other) in enumerate(zip(wanted.scores, got.scores)):
        if wanted.parts[at] != got.parts[at]:
            break
        changes.append(abs(one - other))
    return max(changes, default=nan)
