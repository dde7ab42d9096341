"""Token equality with plain decoding: each request alone, nothing cached, every draft verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.sequence import LiveSequence
from paradecode.measure.certificate.plan import Plan, Subject, Text
from paradecode.measure.certificate.requests import Job, running, serve
from paradecode.measure.certificate.ties import Divergence, explain
from paradecode.methods.registry import parse

Outputs = dict[tuple[str, float], list[int]]
"""(text, temperature) -> output tokens."""


@dataclass(frozen=True)
class Equality:
    """What was compared, and what differed.

    Attributes:
        runs, equal: requests, and how many of them gave plain decoding's tokens.
        tokens: output tokens of plain decoding that were compared.
        drafted, accepted: draft tokens that the target scored, and those that stayed.
        divergences: one for each request that differed.
    """

    runs: int
    equal: int
    tokens: int
    drafted: int
    accepted: int
    divergences: tuple[Divergence, ...]

    @property
    def unexplained(self) -> int:
        """How many differences are not near ties."""
        return sum(not divergence.near_tie for divergence in self.divergences)


def temperatures(subject: Subject, plan: Plan) -> tuple[float, ...]:
    """At which temperatures tokens must be plain decoding's: above 0 only exact methods owe it."""
    sampled = subject.guarantee == "exact" and plan.temperature > 0.0
    return (0.0, plan.temperature) if sampled else (0.0,)


def params_of(plan: Plan, index: int, temperature: float) -> SamplingParams:
    """Sampling of text ``index``."""
    return SamplingParams(
        max_tokens=plan.max_tokens, temperature=temperature, seed=plan.seed + index
    )


def plain_outputs(
    engine: Engine,
    texts: Sequence[Text],
    wanted: Sequence[float],
    plan: Plan,
    ended: Callable[[], None],
) -> Outputs:
    """Plain decoding of every text at every temperature: the reference."""
    plain = parse("greedy")
    keys = [(text, index, t) for t in wanted for index, text in enumerate(texts)]
    jobs = [Job(text.tokens, plain, params_of(plan, index, t)) for text, index, t in keys]
    with running(engine, batch=1, prefix_cache=False):
        sequences = serve(engine, jobs, ended)
    for sequence in sequences:
        if sequence.error is not None:  # Nothing can be compared with a model that fails.
            raise sequence.error
    return {(text.id, t): seq.output for (text, _, t), seq in zip(keys, sequences, strict=True)}


def compare(
    engine: Engine,
    subject: Subject,
    texts: Sequence[Text],
    reference: Outputs,
    plan: Plan,
    ended: Callable[[], None],
    to_the_end: bool = False,
) -> Equality:
    """The subject's outputs, one request at a time, against the reference.

    Args:
        to_the_end: go on after a difference, whatever the plan says.
    """
    found: list[Divergence] = []
    runs = equal = tokens = drafted = accepted = 0
    for t in temperatures(subject, plan):
        for index, text in enumerate(texts):
            params = params_of(plan, index, t)
            with running(engine, costs=False, batch=1, prefix_cache=False):
                (seq,) = serve(engine, [Job(text.tokens, subject.make, params)], ended)
            wanted = reference[text.id, t]
            difference = judge(engine, text, params, wanted, seq)
            stats = seq.stats
            runs, tokens = runs + 1, tokens + len(wanted)
            drafted, accepted = drafted + stats.drafted, accepted + stats.accepted
            equal += difference is None
            if difference is not None:
                found.append(difference)
                if not (plan.keep_going or to_the_end):
                    return Equality(runs, equal, tokens, drafted, accepted, tuple(found))
    return Equality(runs, equal, tokens, drafted, accepted, tuple(found))


def judge(
    engine: Engine, text: Text, params: SamplingParams, wanted: Sequence[int], seq: LiveSequence
) -> Divergence | None:
    """How a finished request differs from plain decoding; None when it does not."""
    if seq.error is not None:
        got = seq.output
        return Divergence(
            text.id, params.temperature, len(got), None, None,
            error=f"{type(seq.error).__name__}: {seq.error}",
        )  # fmt: skip
    return explain(engine, text.id, text.tokens, params, wanted, seq.output)
