"""Computes figures from the requests of a load run, for each endpoint and load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode_lab.measure.results import Record, Results, StreamedAnswer
from paradecode_lab.measure.statistics import Estimate, Interval, percentile, rate, speedup, wilson

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Percentiles = dict[str, Estimate | None]
Phase = tuple[str, str, int]
"""Identifies requests that are measured and kept together: (endpoint, load, round)."""


@dataclass(frozen=True)
class LoadSummary:
    """One endpoint under one load, over all rounds.

    Attributes:
        requests: number of sent requests, including failed ones.
        errors: kind of error -> number of failed requests.
        tokens: number of tokens of the requests that did not fail.
        throughput: these tokens a second, over all rounds.
        speedup: throughput over that of the first endpoint; None for the first endpoint itself.
        answered: number of requests a second that did not fail.
        good: share of all requests that did not fail and met the objectives; None without
            objectives.
        goodput: number of such requests a second.
        first, per_token, whole: seconds to the first text (TTFT), per token after it (TPOT), and to
            the end; percentiles over the requests that did not fail.
        longest_gap: the longest time between two chunks of one answer.
        tokens_per_chunk: mean number of tokens in a chunk.
        client: share of one core that the client used.
        late: the longest time in seconds from when a request was due until it was sent.
    """

    endpoint: str
    load: str
    requests: int
    errors: dict[str, int]
    tokens: int
    throughput: Estimate | None
    speedup: Estimate | None
    answered: float
    good: Interval | None
    goodput: float | None
    first: Percentiles
    per_token: Percentiles
    whole: Percentiles
    longest_gap: Percentiles
    tokens_per_chunk: float | None
    client: float
    late: float


def phase_of(record: Record) -> Phase:
    """Return the phase that a request belongs to."""
    return record.engine, streamed(record).load, record.round


def streamed(record: Record) -> StreamedAnswer:
    """Return the streamed answer of a request."""
    assert record.streamed is not None
    return record.streamed


def summarise(results: Results) -> list[LoadSummary]:
    """Summarise each endpoint under each load; loads and endpoints keep their order."""
    found: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for record in results.records:
        endpoint, load, number = phase_of(record)
        found.setdefault((load, endpoint), {}).setdefault(number, []).append(record)
    names = [engine.name for engine in results.engines]
    return [
        _summary(name, load, found[load, name], found.get((load, names[0]), {}), results.settings)
        for load in results.settings["loads"]
        for name in names
        if (load, name) in found
    ]


def is_good(record: Record, settings: Mapping[str, Any]) -> bool:
    """Decide whether a request was answered within the objectives.

    An answer in a single chunk has no time per token, and is judged only by the time to its first
    text.
    """
    answer, first, pace = streamed(record), settings.get("slo_ttft"), settings.get("slo_tpot")
    if record.error or answer.first is None:
        return False
    per_token = answer.per_token
    return (first is None or answer.first <= first) and (
        pace is None or per_token is None or per_token <= pace
    )


def _summary(
    name: str,
    load: str,
    rounds: Mapping[int, Sequence[Record]],
    base: Mapping[int, Sequence[Record]],
    settings: Mapping[str, Any],
) -> LoadSummary:
    records = [record for own in rounds.values() for record in own]
    fine = [streamed(record) for record in records if not record.error]
    answers = [streamed(record) for record in records]
    own, first = _totals(rounds), _totals(base)
    throughput, baseline = rate(*own), rate(*first)
    faster = None
    if rounds is not base and throughput and baseline and baseline.value > 0:
        rates, others = ([t / s for t, s in zip(*totals)] for totals in (own, first))
        faster = speedup(rates, others, throughput.value / baseline.value)
    tokens, seconds = sum(own[0]), sum(own[1])
    good = sum(is_good(record, settings) for record in records)
    objectives = any(settings.get(bound) is not None for bound in ("slo_ttft", "slo_tpot"))
    chunks = sum(answer.chunks for answer in fine)
    return LoadSummary(
        endpoint=name,
        load=load,
        requests=len(records),
        errors=dict(Counter(r.error.partition(":")[0] for r in records if r.error)),
        tokens=tokens,
        throughput=throughput,
        speedup=faster,
        answered=len(fine) / seconds,
        good=wilson(good, len(records)) if objectives else None,
        goodput=good / seconds if objectives else None,
        first=_percentiles([a.first for a in fine]),
        per_token=_percentiles([a.per_token for a in fine]),
        whole=_percentiles([a.end for a in fine]),
        longest_gap=_percentiles([a.longest_gap for a in fine if a.chunks > 1]),
        tokens_per_chunk=sum(a.tokens or 0 for a in fine) / chunks if chunks else None,
        client=sum(answer.client_seconds for answer in answers) / seconds,
        late=max(answer.late for answer in answers),
    )


def _totals(rounds: Mapping[int, Sequence[Record]]) -> tuple[list[int], list[float]]:
    """Return for each round the tokens of the requests that did not fail, and its seconds."""
    tokens = [sum(streamed(r).tokens or 0 for r in own if not r.error) for own in rounds.values()]
    return tokens, [sum(record.wall_seconds for record in own) for own in rounds.values()]


def _percentiles(values: Sequence[float | None]) -> Percentiles:
    known = [value for value in values if value is not None]
    return {name: percentile(known, share) for name, share in SHARES.items()}
