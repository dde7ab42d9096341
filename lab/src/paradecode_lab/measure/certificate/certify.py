"""Runs all checks of a certificate in their order, and judges their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.engine.engine import Engine
from paradecode_lab.measure.certificate.distribution import LawTest, check_law
from paradecode_lab.measure.certificate.places import find_places
from paradecode_lab.measure.certificate.plan import (
    CertificatePlan,
    Claim,
    Progress,
    Trial,
)
from paradecode_lab.measure.certificate.tokens import (
    Case,
    Invariance,
    TokenEquality,
    compare,
    plain_cases,
    vary,
)
from paradecode_lab.measure.prompts import Item

VARIED = 8
"""Number of prompts that are also served in batches, in chunks and from the cache.

More prompts find more errors, and take longer.
"""


@dataclass
class Certificate:
    """The results of all checks of a decoder, and the verdict on its promise.

    Attributes:
        subject: the decoder's name.
        guarantee: what the decoder promises.
        texts: number of prompts.
        equality, invariance, distribution: results of the checks; None (or empty) for a check that
            was left out.
        failures: the reasons why the decoder did not pass, each a sentence.
        notes: further facts that a reader must know.
        seconds: duration of the whole test.
    """

    subject: str
    guarantee: str
    texts: int
    plan: CertificatePlan
    equality: TokenEquality | None = None
    invariance: list[Invariance] = field(default_factory=list)
    distribution: LawTest | None = None
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Literal["pass", "fail", "lossy"]:
        if self.guarantee == "lossy":
            return "lossy"
        return "fail" if self.failures else "pass"


def certify(
    engine: Engine,
    claim: Claim,
    texts: Sequence[Item],
    plan: CertificatePlan,
    progress: Progress = lambda stage, done, total: None,
) -> Certificate:
    """Test a decoder with the engine's own model, memory and machine.

    An exact method must give the tokens of plain decoding, greedy and sampled, for single requests
    and in every way of serving. For other methods the greedy tokens are compared, and the
    distribution of the sampled tokens is tested. A lossy method is only measured, and not judged.

    Raises:
        InvalidInput, CapacityError: the engine cannot serve the prompts or settings.
    """
    if not texts:
        raise InvalidInput("prompts", 0, "give at least one prompt")
    plan.check(claim)
    started = time.perf_counter()
    found = Certificate(claim.name, claim.guarantee, len(texts), plan)
    trial, lossy = Trial(engine, claim, plan, progress), claim.guarantee == "lossy"
    cases = plain_cases(trial, texts)
    found.equality = compare(trial, cases, plan.keep_going or lossy)
    _judge_equality(found, claim, found.equality)
    if found.equality.divergences and found.failures and not (plan.keep_going or lossy):
        found.notes.append("stopped at the first difference; the other checks were left out")
    else:
        if not lossy:
            some = [case for case in cases if case.text in texts[:VARIED]]
            found.invariance = vary(trial, some)
            _judge_invariance(found)
        if claim.guarantee != "exact" and plan.temperature > 0.0:
            _judge_law(found, trial, cases)
    found.seconds = time.perf_counter() - started
    return found


def _judge_equality(found: Certificate, claim: Claim, equality: TokenEquality) -> None:
    differ = len(equality.divergences)
    counted = equality.unexplained if found.plan.allow_near_ties else differ
    if counted:
        found.failures.append(f"{counted} of {equality.runs} outputs differ from plain decoding")
    if differ > equality.unexplained:
        ties = differ - equality.unexplained
        found.notes.append(f"{ties} first differences are near ties that rounding can explain")
    if not claim.drafts:
        found.notes.append("this method drafts nothing: it is compared with itself")
    elif equality.drafted < equality.runs:
        found.failures.append(
            f"only {equality.drafted} draft tokens were verified in {equality.runs} outputs: "
            "nothing was put to the test"
        )


def _judge_invariance(found: Certificate) -> None:
    for way in found.invariance:
        if way.equal < way.runs and not way.passed:
            differ = way.runs - way.equal
            found.failures.append(f"{way.name}: {differ} of {way.runs} outputs differ")
        elif not way.passed:
            found.failures.append(f"{way.name}: no prompt was found in the cache")


def _judge_law(found: Certificate, trial: Trial, cases: Sequence[Case]) -> None:
    greedy = [case for case in cases if case.params.temperature == 0.0]
    long = [(case.text.id, [*case.text.token_ids, *case.plain]) for case in greedy]
    places = find_places(trial, long)
    if not places:
        found.failures.append("the law was not tested: no prompt has a likely draft at its end")
        return
    try:
        law = found.distribution = check_law(trial, places)
    except DecoderError as error:
        found.failures.append(f"a sampled request failed: {error}")
        return
    if not law.same_law:
        p = law.smallest_p
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
