"""Checks that tokens equal plain decoding's: alone, with neighbours, in chunks, from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode_lab.measure.certificate.plan import CertificatePlan, Claim, Trial
from paradecode_lab.measure.certificate.requests import request, running, serve
from paradecode_lab.measure.certificate.ties import FirstDifference, explain
from paradecode_lab.measure.prompts import Item

NEIGHBOURS = ("greedy", "prompt-lookup", "suffix", "token-recycling")
"""Methods of the other requests in the batch."""
BATCH = 8
CHUNK = 7
"""Number of rows in a step. It does not divide a page, and is smaller than nearly all drafts."""
ALONE: dict[str, Any] = {"batch": 1, "prefix_cache": False}
"""Limits of an engine that serves one request at a time, with nothing cached."""


@dataclass(frozen=True)
class Case:
    """A prompt, its sampling parameters, and the token ids that plain decoding gives for them."""

    text: Item
    params: SamplingParams
    plain: list[int]


@dataclass(frozen=True)
class TokenEquality:
    """Results when each request runs alone and every draft is verified.

    Attributes:
        runs, equal: number of requests, and number of requests that gave plain decoding's tokens.
        tokens: number of plain decoding's output tokens that were compared.
        drafted, accepted: numbers of draft tokens that the target scored, and that it accepted.
        divergences: one for each request that differed.
    """

    runs: int
    equal: int
    tokens: int
    drafted: int
    accepted: int
    divergences: tuple[FirstDifference, ...]

    @property
    def unexplained(self) -> int:
        """Number of differences that are not near ties."""
        return sum(not difference.near_tie for difference in self.divergences)


@dataclass(frozen=True)
class Invariance:
    """Results of serving the same requests in another way, such as from the cache.

    Attributes:
        name: name of the way of serving.
        runs, equal: number of requests, and number of requests that gave plain decoding's tokens.
        cached_tokens: number of prompt tokens that were found in the prefix cache.
        divergences: one for each request that differed.
        passed: whether nothing differed, and the situation that should be tested did occur.
    """

    name: str
    runs: int
    equal: int
    cached_tokens: int
    divergences: tuple[FirstDifference, ...]
    passed: bool


@dataclass(frozen=True)
class Serving:
    """A way of serving: the engine's limits, the neighbours, and how often each request is made.

    Attributes:
        neighbours: whether requests of other methods share the batch.
        costs: whether the budget ``auto`` knows the costs and drafts what pays, like in normal use;
            without costs it drafts everything.
        rounds: how often each request is made.
    """

    name: str
    limits: dict[str, Any]
    neighbours: bool = False
    costs: bool = False
    rounds: int = 1


WAYS = (
    Serving(
        f"batch of {BATCH}, mixed methods",
        {"batch": BATCH, "prefix_cache": False},
        neighbours=True,
        costs=True,
    ),
    Serving(f"steps of {CHUNK} rows", {"batch": 2, "step_tokens": CHUNK, "prefix_cache": False}),
    Serving("prefix from the cache", {"batch": 1, "prefix_cache": True}, rounds=2),
)


def temperatures(claim: Claim, plan: CertificatePlan) -> tuple[float, ...]:
    """Return the temperatures at which all tokens must equal plain decoding's.

    A temperature above 0 is among them only for exact methods.
    """
    sampled = claim.guarantee == "exact" and plan.temperature > 0.0
    return (0.0, plan.temperature) if sampled else (0.0,)


def plain_cases(trial: Trial, texts: Sequence[Item]) -> list[Case]:
    """Decode every text plainly at every temperature; cases of temperature 0 come first.

    Raises:
        Exception: the error that ended a request: if the model fails, nothing can be compared.
    """
    engine, plan = trial.engine, trial.plan
    wanted = [
        (text, SamplingParams(plan.max_tokens, temperature=t, seed=plan.seed + index))
        for t in temperatures(trial.claim, plan)
        for index, text in enumerate(texts)
    ]
    plain = parse("greedy")
    with running(engine, **ALONE):
        requests = [request(text.token_ids, plain, params) for text, params in wanted]
        ended = trial.counter("plain decoding", len(requests))
        sequences = serve(engine, requests, ended)
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    return [
        Case(text, params, sequence.output)
        for (text, params), sequence in zip(wanted, sequences, strict=True)
    ]


def compare(trial: Trial, cases: Sequence[Case], keep_going: bool) -> TokenEquality:
    """Compare the method's outputs, one request at a time, with plain decoding's.

    Args:
        keep_going: whether the comparison goes on after a difference.
    """
    engine, ended = trial.engine, trial.counter("token equality", len(cases))
    differences: list[FirstDifference] = []
    runs = tokens = drafted = accepted = 0
    for case in cases:
        with running(engine, costs=False, **ALONE):
            asked = request(case.text.token_ids, trial.claim.make, case.params)
            (sequence,) = serve(engine, [asked], ended)
        runs, tokens = runs + 1, tokens + len(case.plain)
        drafted += sequence.stats.drafted
        accepted += sequence.stats.accepted
        difference = _difference(engine, case, sequence)
        if difference is not None:
            differences.append(difference)
            if not keep_going:
                break
    equal = runs - len(differences)
    return TokenEquality(runs, equal, tokens, drafted, accepted, tuple(differences))


def vary(trial: Trial, cases: Sequence[Case]) -> list[Invariance]:
    """Serve the same requests in every other way; only the last round of each way is judged."""
    requests = sum(len(cases) * (2 if way.neighbours else way.rounds) for way in WAYS)
    ended = trial.counter("invariance", requests)
    return [_in_way(trial, cases, way, ended) for way in WAYS]


def _in_way(
    trial: Trial, cases: Sequence[Case], way: Serving, ended: Callable[[], None]
) -> Invariance:
    engine = trial.engine
    requests: list[GenerationRequest] = []
    for number, case in enumerate(cases):
        makers = [trial.claim.make]
        if way.neighbours:
            makers.append(parse(NEIGHBOURS[number % len(NEIGHBOURS)]))
        requests += [request(case.text.token_ids, make, case.params, way.name) for make in makers]
    with running(engine, way.costs, **way.limits):
        for _ in range(way.rounds - 1):
            serve(engine, requests, ended)
        sequences = serve(engine, requests, ended)
    own = sequences[:: 2 if way.neighbours else 1]
    found = [_difference(engine, case, seq) for case, seq in zip(cases, own, strict=True)]
    differences = tuple(difference for difference in found if difference is not None)
    counted = any(not (each.near_tie and trial.plan.allow_near_ties) for each in differences)
    cached = sum(sequence.cached_tokens for sequence in own)
    reusable = any(len(case.text.token_ids) > PAGE for case in cases)
    tried = way.rounds == 1 or cached > 0 or not reusable
    equal = len(own) - len(differences)
    return Invariance(way.name, len(own), equal, cached, differences, tried and not counted)


def _difference(engine: Engine, case: Case, sequence: LiveSequence) -> FirstDifference | None:
    """Return how a finished request first differs from plain decoding.

    The result is None if it does not differ.
    """
    name, params, output = case.text.id, case.params, sequence.output
    if sequence.error is not None:
        error = f"{type(sequence.error).__name__}: {sequence.error}"
        return FirstDifference(name, params.temperature, len(output), None, None, error=error)
    return explain(engine, name, case.text.token_ids, params, case.plain, output)
