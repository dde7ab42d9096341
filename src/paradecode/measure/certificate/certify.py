"""All checks of one certificate, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.engine.engine import Engine
from paradecode.measure.certificate.distribution import CONTROLS, Distribution, check_law
from paradecode.measure.certificate.equality import (
    Equality,
    Outputs,
    compare,
    plain_outputs,
    temperatures,
)
from paradecode.measure.certificate.invariance import Variant, runs_of, vary
from paradecode.measure.certificate.places import find_places
from paradecode.measure.certificate.plan import Plan, Progress, Subject, Text

Verdict = Literal["pass", "fail", "lossy"]
VARIED = 8
"""How many of the texts are served in every company."""


@dataclass
class Certificate:
    """What was found.

    Attributes:
        subject: the decoder's name; ``guarantee``: what it promises.
        texts: how many prompts.
        equality, invariance, distribution: the checks; None (or empty) where one was left out.
        failures: why it did not pass, a sentence each.
        notes: what a reader must know all the same.
        seconds: how long it took.
    """

    subject: str
    guarantee: str
    texts: int
    plan: Plan
    equality: Equality | None = None
    invariance: list[Variant] = field(default_factory=list)
    distribution: Distribution | None = None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if self.guarantee == "lossy":
            return "lossy"
        return "fail" if self.failures else "pass"


def certify(
    engine: Engine,
    subject: Subject,
    texts: Sequence[Text],
    plan: Plan,
    progress: Progress = lambda stage, done, total: None,
) -> Certificate:
    """Put a decoder to the test with the engine's own model, memory and machine.

    Exact methods: the tokens of plain decoding, greedy and sampled, alone and in every company.
    Others: the greedy tokens, and the law of what is sampled. A lossy method is measured, not
    judged.

    Raises:
        InvalidInput, CapacityError: for prompts or settings that cannot be served.
    """
    if not texts:
        raise InvalidInput("prompts", 0, "give at least one prompt")
    plan.check(subject)
    started = time.perf_counter()
    found = Certificate(subject.name, subject.guarantee, len(texts), plan)
    _fill(found, engine, subject, texts, progress)
    found.seconds = time.perf_counter() - started
    return found


def _fill(
    found: Certificate, engine: Engine, subject: Subject, texts: Sequence[Text], progress: Progress
) -> None:
    plan, runs = found.plan, len(texts) * len(temperatures(subject, found.plan))
    lossy = subject.guarantee == "lossy"
    wanted = temperatures(subject, plan)
    reference = plain_outputs(
        engine, texts, wanted, plan, _counter(progress, "plain decoding", runs)
    )
    equality = compare(
        engine, subject, texts, reference, plan, _counter(progress, "token equality", runs), lossy
    )
    found.equality = equality
    _judge_equality(found, subject, equality)
    if equality.divergences and found.failures and not plan.keep_going and not lossy:
        found.notes.append("stopped at the first difference; the other checks were left out")
        return
    if not lossy:
        some = texts[:VARIED]
        tick = _counter(progress, "invariance", runs_of(subject, some, plan))
        found.invariance = vary(engine, subject, some, reference, plan, tick)
        _judge_invariance(found)
    if subject.guarantee != "exact" and plan.temperature > 0.0:
        _judge_law(found, engine, subject, texts, reference, progress)


def _judge_equality(found: Certificate, subject: Subject, equality: Equality) -> None:
    differ = len(equality.divergences)
    counted = equality.unexplained if found.plan.allow_near_ties else differ
    if counted:
        found.failures.append(f"{counted} of {equality.runs} outputs differ from plain decoding")
    if differ > equality.unexplained:
        ties = differ - equality.unexplained
        found.notes.append(f"{ties} first differences are near ties that rounding can explain")
    if not subject.drafts:
        found.notes.append("this method drafts nothing: it is compared with itself")
    elif equality.drafted < equality.runs:
        found.failures.append(
            f"only {equality.drafted} draft tokens were verified in {equality.runs} outputs: "
            "nothing was put to the test"
        )


def _judge_invariance(found: Certificate) -> None:
    for variant in found.invariance:
        if variant.equal < variant.runs and not variant.passed:
            differ = variant.runs - variant.equal
            found.failures.append(f"{variant.name}: {differ} of {variant.runs} outputs differ")
        elif not variant.passed:
            found.failures.append(f"{variant.name}: no prompt was found in the cache")


def _judge_law(
    found: Certificate,
    engine: Engine,
    subject: Subject,
    texts: Sequence[Text],
    reference: Outputs,
    progress: Progress,
) -> None:
    plan = found.plan
    long = [(text.id, [*text.tokens, *reference[text.id, 0.0]]) for text in texts]
    tick = _counter(progress, "places for the law", len(long) + plan.places)
    places = find_places(engine, subject, long, plan, tick)
    if not places:
        found.failures.append("the law was not tested: no prompt has a likely draft at its end")
        return
    kinds = 1 + (len(CONTROLS) if subject.guarantee == "distribution" else 0)
    tick = _counter(progress, "law and controls", plan.samples * len(places) * kinds)
    try:
        law = found.distribution = check_law(engine, subject, places, plan, tick)
    except DecoderError as error:
        found.failures.append(f"a sampled request failed: {error}")
        return
    if not law.same_law:
        p = min([law.p, *(place.p for place in law.places)])
        found.failures.append(f"the sampled tokens do not follow the model's law (p = {p:.1e})")
    if not law.enough_drafts:
        found.failures.append(
            f"a draft was verified in only {law.drafted_share:.0%} of the sampled requests: "
            "the verifier was not put to the test"
        )
    for control in law.controls:
        if not control.passed:
            found.failures.append(
                f"the control (acceptance times {control.factor}) was not found: "
                "the test has too little power; raise samples"
            )


def _counter(progress: Progress, stage: str, total: int) -> Callable[[], None]:
    done = 0
    progress(stage, 0, total)

    def tick() -> None:
        nonlocal done
        done += 1
        progress(stage, done, total)

    return tick
