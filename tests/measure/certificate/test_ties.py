"""The rounding of the arithmetic tells near ties from bugs."""

from collections.abc import Sequence

import numpy as np
import pytest
from wrong import BONUS_OF_THE_PARENT, LOOP, TEXTS, exact

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.decoder import TARGET
from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.certificate.certify import certify
from paradecode_lab.measure.certificate.plan import CertificatePlan, Claim
from paradecode_lab.measure.certificate.requests import request, serve
from paradecode_lab.measure.certificate.ties import explain

STEP = 1e-4


class Rounds(ToyBackend):
    """A model whose logits depend a little on the number of rows in a forward, as float32 sums do.

    The second-best token is ``gap`` below the best one.
    """

    def __init__(self, gap: float, step: float = STEP) -> None:
        super().__init__(toy_config())
        self.gap, self.step = gap, step

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        rows = sum(len(span.positions) for span in spans)
        results = []
        for result in super().forward(spans):
            values = np.array(
                result.logits.gather(np.arange(29)[None, :].repeat(result.logits.shape[0], 0))
            )
            order = np.argsort(-values, axis=1)
            best = values[np.arange(len(values)), order[:, 0]]
            values[np.arange(len(values)), order[:, 1]] = best - self.gap
            values[np.arange(len(values)), order[:, 0]] += self.step * (rows % 3 - 1)
            results.append(SpanResult(ArrayLogits(values.astype(np.float64)), result.hidden))
        return results


def divergence(gap: float, step: float = STEP, temperature: float = 0.0):
    engine = Engine({TARGET: Rounds(gap, step)}, Limits(16, 512, 4096))
    params = SamplingParams(max_tokens=6, temperature=temperature, seed=3)
    (plain,) = serve(engine, [request(LOOP, parse("greedy"), params)])
    wanted = plain.output
    top = Rounds(gap, step)
    top.reserve(1)
    other = (wanted[3] + 1) % 29
    if temperature == 0.0:
        logits = top.plain_logits(np.array([*LOOP, *wanted[:3]]))
        other = next(int(t) for t in np.argsort(-logits)[:2] if t != wanted[3])
    found = explain(engine, "loop", LOOP, params, wanted, [*wanted[:3], other, *wanted[4:]])
    assert (found.position, found.expected, found.got) == (3, wanted[3], other)
    return found


def test_a_gap_within_the_rounding_is_a_near_tie() -> None:
    found = divergence(gap=STEP / 2)
    assert found.near_tie
    assert found.rounding == pytest.approx(STEP, rel=1.01)
    assert abs(found.gap) <= 2 * found.rounding
    assert found.top_gap <= 2 * STEP
    assert {found.expected, found.got} == set(found.top)


def test_a_gap_beyond_the_rounding_is_not() -> None:
    found = divergence(gap=0.5)
    assert not found.near_tie
    assert found.gap == pytest.approx(0.5, abs=2 * STEP)


def test_exact_arithmetic_has_no_near_ties() -> None:
    """Without rounding no gap is a near tie, since only a bug can change the token."""
    found = divergence(gap=1e-9, step=0.0)
    assert found.rounding == 0.0
    assert not found.near_tie


def test_above_temperature_0_the_perturbed_scores_decide() -> None:
    found = divergence(gap=STEP / 2, temperature=1.0)
    assert found.gap > 2 * found.rounding  # The noise separates tokens whose logits nearly tie.
    assert found.top_gap <= 2 * STEP
    assert not found.near_tie


def test_an_output_that_ends_early_is_no_tie() -> None:
    engine = Engine({TARGET: Rounds(STEP)}, Limits(16, 512, 4096))
    found = explain(engine, "x", LOOP, SamplingParams(max_tokens=4), [5, 6, 7], [5, 6])
    assert (found.position, found.expected, found.got, found.near_tie) == (2, 7, None, False)


@pytest.mark.parametrize("allowed", [False, True])
def test_near_ties_fail_a_certificate_unless_allowed(allowed: bool) -> None:
    engine = Engine({TARGET: Rounds(STEP / 2)}, Limits(16, 512, 4096))
    plan = CertificatePlan(16, temperature=0.0, keep_going=True, allow_near_ties=allowed)
    found = certify(engine, Claim.of(parse("prompt-lookup")), TEXTS, plan)
    assert found.equality.divergences
    assert found.equality.unexplained == 0
    assert any("near ties" in note for note in found.notes)
    assert found.verdict == ("pass" if allowed else "fail")


def test_bugs_are_never_allowed() -> None:
    engine = Engine({TARGET: Rounds(0.5)}, Limits(16, 512, 4096))
    plan = CertificatePlan(16, temperature=0.0, allow_near_ties=True)
    assert certify(engine, exact(BONUS_OF_THE_PARENT), TEXTS, plan).verdict == "fail"
