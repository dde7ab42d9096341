"""On the toy model, correct methods pass, wrong ones are found, and lossy ones are flagged."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from wrong import BONUS_OF_THE_PARENT, BREAKS, TEXTS, exact, slips_in_company, toy_engine

from broken import Drafted, NeverDrafts
from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import methods, parse
from paradecode_lab.measure.certificate.certify import Certificate, certify
from paradecode_lab.measure.certificate.distribution import REQUIRED, biased
from paradecode_lab.measure.certificate.plan import CertificatePlan, Claim

PLAN = CertificatePlan(max_tokens=24, temperature=1.3, samples=150, places=2)


def certificate(claim: Claim | str, plan: CertificatePlan = PLAN) -> Certificate:
    if isinstance(claim, str):
        claim = Claim.of(parse(claim))
    engine = toy_engine()
    limits = engine.limits
    found = certify(engine, claim, TEXTS, plan)
    engine.check()
    assert engine.limits == limits
    assert not engine.busy
    return found


@pytest.mark.first(1)
@pytest.mark.parametrize("claim", ["prompt-lookup", "suffix", exact(Drafted)], ids=str)
def test_exact_methods_pass(claim: Claim | str) -> None:
    found = certificate(claim)
    assert (found.verdict, found.failures) == ("pass", [])
    # Greedy and sampled requests.
    assert found.equality.runs == found.equality.equal == 2 * len(TEXTS)
    assert found.equality.accepted > 0
    assert len(found.invariance) == 3
    assert found.invariance[-1].cached_tokens > 0
    assert found.distribution is None  # Equal tokens prove more than an equal law.


def test_plain_decoding_passes_and_is_told_apart() -> None:
    found = certificate("greedy")
    assert found.verdict == "pass"
    assert any("compared with itself" in note for note in found.notes)


@pytest.mark.first(1)
@pytest.mark.parametrize("verifier", ["rejection", "nss", "traversal"])
def test_distribution_methods_pass(verifier: str) -> None:
    found = certificate(f"prompt-lookup(verifier={verifier})")
    assert (found.verdict, found.failures) == ("pass", [])
    law = found.distribution
    assert law.passed
    assert law.samples == 2 * PLAN.samples
    assert law.drafted_share == 1.0
    assert 0 < law.accepted < law.drafted
    assert {control.factor for control in law.controls if control.found_at} >= {1.25, REQUIRED}


def planted(factor: float) -> Claim:
    """Return a claim with a biased verifier, which claims to be exact in distribution."""
    right = Claim.of(parse("prompt-lookup(verifier=rejection)"))
    return replace(right, name="planted", make=biased(right.make, factor))


@pytest.mark.first(1)
@pytest.mark.parametrize("factor", [1.25, REQUIRED])
def test_a_planted_biased_verifier_is_caught(factor: float) -> None:
    found = certificate(planted(factor))
    assert found.verdict == "fail"
    assert not found.equality.divergences  # The bias does not show at temperature 0.
    assert "do not follow the model's law" in found.failures[0]


@pytest.mark.wide
def test_the_planted_verifier_passes_without_its_bias() -> None:
    assert certificate(planted(1.0)).verdict == "pass"


@pytest.mark.parametrize("make", [BONUS_OF_THE_PARENT, BREAKS])
def test_planted_bugs_are_caught(make: Callable[[], Decoder]) -> None:
    found = certificate(exact(make))
    assert found.verdict == "fail"
    (difference,) = found.equality.divergences  # The test stops at the first difference.
    assert not difference.near_tie
    assert bool(difference.error) == (make is BREAKS)
    assert found.invariance == []


def test_a_bug_that_needs_company_is_caught() -> None:
    found = certificate(exact(lambda: Drafted(slips_in_company)))
    assert found.verdict == "fail"
    assert not found.equality.divergences
    assert not found.invariance[0].passed
    assert found.invariance[-1].passed  # One request at a time gives the right tokens.


def test_it_goes_on_when_told_to() -> None:
    found = certificate(exact(BONUS_OF_THE_PARENT), replace(PLAN, keep_going=True))
    assert found.equality.runs == 2 * len(TEXTS)
    assert len(found.equality.divergences) > 2
    assert len(found.invariance) == 3


def test_without_drafts_nothing_is_certified() -> None:
    found = certificate(exact(NeverDrafts))
    assert found.verdict == "fail"
    assert "nothing was put to the test" in found.failures[0]


def test_without_places_the_law_is_not_certified() -> None:
    engine = toy_engine()
    claim = Claim.of(parse("prompt-lookup(verifier=rejection)"))
    found = certify(engine, claim, TEXTS, replace(PLAN, temperature=50.0))
    assert found.verdict == "fail"
    assert any("the law was not tested" in reason for reason in found.failures)


def test_too_few_samples_for_the_control_fail() -> None:
    """If a certificate cannot find a wrong verifier, it must not pass a correct one."""
    claim = Claim.of(parse("prompt-lookup(verifier=rejection)"))
    found = certify(toy_engine(), claim, TEXTS, CertificatePlan(24, 3.0, samples=100, places=1))
    assert found.verdict == "fail"
    assert any("too little power" in reason or "not tested" in reason for reason in found.failures)


def test_lossy_methods_are_measured_and_flagged() -> None:
    found = certificate("prompt-lookup(verifier=typical)")
    assert found.verdict == "lossy"
    assert not found.distribution.same_law
    assert found.distribution.controls == ()
    assert max(place.distance for place in found.distribution.places) > 0.1


def test_a_lossy_method_is_measured_to_the_end() -> None:
    claim = Claim("lossy", BONUS_OF_THE_PARENT, "lossy")
    found = certificate(claim)
    assert found.verdict == "lossy"
    assert found.equality.runs == len(TEXTS)
    assert len(found.equality.divergences) > 1


def test_ctrl_c_leaves_nothing_behind() -> None:
    engine = toy_engine()

    def stop(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("token equality", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(engine, exact(Drafted), TEXTS, PLAN, stop)
    assert not engine.busy
    assert all(pool.held == 0 for pool in engine.pools.values())
    assert engine.limits == toy_engine().limits


def test_what_cannot_be_certified_is_refused() -> None:
    claim = Claim.of(parse("prompt-lookup(verifier=nss)"))
    with pytest.raises(InvalidInput, match="temperature"):
        certify(toy_engine(), claim, TEXTS, replace(PLAN, temperature=0.0))
    with pytest.raises(InvalidInput, match="prompts"):
        certify(toy_engine(), claim, [], PLAN)
    with pytest.raises(InvalidInput, match="verifier"):  # The verifier refuses to sample.
        certificate("prompt-lookup(verifier=greedy)")
    with pytest.raises(InvalidInput, match="not a DraftVerify"):
        biased(Drafted, 1.5)()
    for wrong in (
        {"samples": 1}, {"max_tokens": 0}, {"temperature": float("nan")}, {"temperature": "hot"},
        {"seed": -1}, {"places": 10**9}, {"samples": True},
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            CertificatePlan(**wrong)  # type: ignore[arg-type]


def test_the_control_is_no_method() -> None:
    assert not any("bias" in name or "control" in name for name in methods())
