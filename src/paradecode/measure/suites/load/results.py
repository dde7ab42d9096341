"""What was measured, request by request, its JSON, and its figures by endpoint and load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paradecode.measure.machine import Machine
from paradecode.measure.result_files import rounded
from paradecode.measure.statistics import Estimate, Interval, percentile, rate, speedup, wilson
from paradecode.measure.suites.load.plan import LoadPlan, OfferedLoad

SCHEMA = "paradecode-load/1"


@dataclass
class StreamedAnswer:
    """One request. Times are seconds; those of an open loop count from when it was due.

    Attributes:
        start: when it was sent (closed loop) or due (open loop), from the start of the round.
        late: how much later than due it was sent: the client's own delay.
        first, last: to the first and to the last text; None without text.
        end: to the end of the answer.
        longest_gap: between two of them.
        tokens: of the output; None where the request failed.
        error: empty, or what went wrong, as ``kind: detail``.
        text: the output; not written to files.
    """

    ask: str
    start: float
    late: float = 0.0
    first: float | None = None
    last: float | None = None
    end: float = 0.0
    chunks: int = 0
    longest_gap: float = 0.0
    tokens: int | None = None
    finish_reason: str = ""
    error: str = ""
    text: str = ""

    @property
    def per_token(self) -> float | None:
        """Seconds per token from the first text to the last (TPOT).

        A chunk may hold many tokens, so the time between chunks is no time between tokens: this is
        the mean over all tokens after the first. None where nothing was timed: fewer than two
        tokens, or all of them in one chunk.
        """
        if self.first is None or self.last is None or self.chunks < 2 or (self.tokens or 0) < 2:
            return None
        assert self.tokens is not None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class Phase:
    """One endpoint under one load in one round.

    Attributes:
        seconds: from the first request's start to the last one's end.
        client_seconds: processor time the client itself took from the machine.
    """

    endpoint: str
    load: OfferedLoad
    round: int
    seconds: float
    client_seconds: float
    answers: Sequence[StreamedAnswer]

    @property
    def tokens(self) -> int:
        """Of the requests that did not fail."""
        return sum(answer.tokens or 0 for answer in self.answers if not answer.error)


@dataclass(frozen=True)
class LoadResults:
    """A whole run. ``endpoints`` are what was asked where, ``settings`` those of the plan."""

    created: str
    machine: Machine
    settings: Mapping[str, Any]
    endpoints: Sequence[Mapping[str, Any]]
    phases: Sequence[Phase]


def as_json(results: LoadResults, figures: Any) -> dict[str, Any]:
    """Everything that was measured, and the figures of the tables."""
    document = {"schema": SCHEMA, **asdict(results)}
    phases = document.pop("phases")
    for phase in phases:
        for answer in phase["answers"]:
            del answer["text"]
    document["figures"] = rounded(figures)
    document["phases"] = rounded(phases)
    return document


SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Percentiles = dict[str, Estimate | None]


@dataclass(frozen=True)
class LoadSummary:
    """One endpoint under one load, all rounds.

    Attributes:
        requests: sent; the failed ones are among them, by kind in ``errors``.
        tokens: of the requests that did not fail.
        throughput: those tokens a second, over the whole of the rounds.
        speedup: throughput over that of the first endpoint; None for itself.
        answered: requests a second that did not fail.
        good: share of all requests that did not fail and met the objectives; None without any.
        goodput: such requests a second.
        first, per_token, whole: seconds to the first text (TTFT), per token after it (TPOT), and to
            the end; percentiles over the requests that did not fail.
        longest_gap: between two chunks of one answer.
        tokens_per_chunk: mean.
        client: share of one core that the client itself used.
        late: the most that the client sent a request after it was due.
    """

    endpoint: str
    load: OfferedLoad
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


def summarise(phases: Sequence[Phase], plan: LoadPlan) -> list[LoadSummary]:
    """By load, then by endpoint, in the plan's order."""
    summaries = []
    for load in plan.loads:
        own = {
            endpoint.name: [p for p in phases if p.load == load and p.endpoint == endpoint.name]
            for endpoint in plan.endpoints
        }
        base = own[plan.endpoints[0].name]
        for name, measured in own.items():
            if measured:
                summaries.append(_summary(name, load, measured, base, plan))
    return summaries


def is_good(answer: StreamedAnswer, plan: LoadPlan) -> bool:
    """Whether a request was answered within the objectives.

    An answer that came in one piece has no time per token, and is judged by its first text alone.
    """
    if answer.error or answer.first is None:
        return False
    per_token = answer.per_token
    return (plan.slo_ttft is None or answer.first <= plan.slo_ttft) and (
        plan.slo_tpot is None or per_token is None or per_token <= plan.slo_tpot
    )


def _summary(
    name: str, load: OfferedLoad, phases: Sequence[Phase], base: Sequence[Phase], plan: LoadPlan
) -> LoadSummary:
    answers = [answer for phase in phases for answer in phase.answers]
    fine = [answer for answer in answers if not answer.error]
    seconds = [phase.seconds for phase in phases]
    throughput, baseline = (
        rate([phase.tokens for phase in own], [phase.seconds for phase in own])
        for own in (phases, base)
    )
    faster = None
    if phases[0].endpoint != base[0].endpoint and throughput and baseline and baseline.value > 0:
        rates, others = ([phase.tokens / phase.seconds for phase in own] for own in (phases, base))
        faster = speedup(rates, others, throughput.value / baseline.value)
    good = sum(is_good(answer, plan) for answer in answers)
    objectives = plan.slo_ttft is not None or plan.slo_tpot is not None
    chunks = sum(answer.chunks for answer in fine)
    return LoadSummary(
        endpoint=name,
        load=load,
        requests=len(answers),
        errors=dict(Counter(a.error.partition(":")[0] for a in answers if a.error)),
        tokens=sum(phase.tokens for phase in phases),
        throughput=throughput,
        speedup=faster,
        answered=len(fine) / sum(seconds),
        good=wilson(good, len(answers)) if objectives else None,
        goodput=good / sum(seconds) if objectives else None,
        first=_percentiles([a.first for a in fine]),
        per_token=_percentiles([a.per_token for a in fine]),
        whole=_percentiles([a.end for a in fine]),
        longest_gap=_percentiles([a.longest_gap for a in fine if a.chunks > 1]),
        tokens_per_chunk=sum(a.tokens or 0 for a in fine) / chunks if chunks else None,
        client=sum(phase.client_seconds for phase in phases) / sum(seconds),
        late=max(answer.late for answer in answers),
    )


def _percentiles(values: Sequence[float | None]) -> Percentiles:
    known = [value for value in values if value is not None]
    return {name: percentile(known, share) for name, share in SHARES.items()}
