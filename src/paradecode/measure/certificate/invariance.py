"""The same request in other company, in other pieces, and from the cache: the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.engine.engine import Engine
from paradecode.measure.certificate.equality import Outputs, judge, params_of, temperatures
from paradecode.measure.certificate.plan import Plan, Subject, Text
from paradecode.measure.certificate.requests import Job, running, serve
from paradecode.measure.certificate.ties import Divergence
from paradecode.methods.registry import parse

NEIGHBOURS = ("greedy", "prompt-lookup", "suffix", "token-recycling")
"""Methods that share the batch."""
BATCH = 8
CHUNK = 7
"""Rows of a step: no divisor of a page, and less than most drafts."""


@dataclass(frozen=True)
class Variant:
    """One way to serve the same requests.

    Attributes:
        name: what is different.
        runs, equal: requests, and those with plain decoding's tokens.
        cached_tokens: prompt tokens that were found in the prefix cache.
        divergences: of the others.
        passed: whether nothing differed, and what was to be tried has happened.
    """

    name: str
    runs: int
    equal: int
    cached_tokens: int
    divergences: tuple[Divergence, ...]
    passed: bool


@dataclass(frozen=True)
class Setting:
    """Limits of the engine, who else is in it, and how often each request is made.

    With ``costs`` the budget ``auto`` drafts what pays, as in use; without, everything.
    """

    name: str
    limits: dict[str, Any]
    neighbours: bool = False
    costs: bool = False
    rounds: int = 1


SETTINGS = (
    Setting(f"batch of {BATCH}, mixed methods",
            {"batch": BATCH, "prefix_cache": False}, neighbours=True, costs=True),
    Setting(f"steps of {CHUNK} rows", {"batch": 2, "step_tokens": CHUNK, "prefix_cache": False}),
    Setting("prefix from the cache", {"batch": 1, "prefix_cache": True}, rounds=2),
)  # fmt: skip


def runs_of(subject: Subject, texts: Sequence[Text], plan: Plan) -> int:
    """How many requests :func:`vary` makes, neighbours included."""
    once = len(texts) * len(temperatures(subject, plan))
    return sum(once * (2 if s.neighbours else s.rounds) for s in SETTINGS)


def vary(
    engine: Engine,
    subject: Subject,
    texts: Sequence[Text],
    reference: Outputs,
    plan: Plan,
    ended: Callable[[], None],
) -> list[Variant]:
    """Every setting; only its last round is judged."""
    return [_one(engine, subject, texts, reference, plan, setting, ended) for setting in SETTINGS]


def _one(
    engine: Engine,
    subject: Subject,
    texts: Sequence[Text],
    reference: Outputs,
    plan: Plan,
    setting: Setting,
    ended: Callable[[], None],
) -> Variant:
    requests = [
        (text, params_of(plan, index, t))
        for t in temperatures(subject, plan)
        for index, text in enumerate(texts)
    ]
    jobs: list[Job] = []
    for number, (text, params) in enumerate(requests):
        jobs.append(Job(text.tokens, subject.make, params, salt=setting.name))
        if setting.neighbours:
            other = parse(NEIGHBOURS[number % len(NEIGHBOURS)])
            jobs.append(Job(text.tokens, other, params, salt=setting.name))
    with running(engine, setting.costs, **setting.limits):
        for _ in range(setting.rounds - 1):
            serve(engine, jobs, ended)
        sequences = serve(engine, jobs, ended)
    own = sequences[:: 2 if setting.neighbours else 1]
    found = [
        judge(engine, text, params, reference[text.id, params.temperature], seq)
        for (text, params), seq in zip(requests, own, strict=True)
    ]
    divergences = tuple(divergence for divergence in found if divergence is not None)
    cached = sum(sequence.cached_tokens for sequence in own)
    reusable = any(len(text.tokens) > PAGE for text in texts)
    tried = setting.rounds == 1 or cached > 0 or not reusable
    return Variant(
        setting.name, len(own), len(own) - len(divergences), cached, divergences,
        passed=tried and not _counted(divergences, plan),
    )  # fmt: skip


def _counted(divergences: Sequence[Divergence], plan: Plan) -> bool:
    return any(not (d.near_tie and plan.allow_near_ties) for d in divergences)
