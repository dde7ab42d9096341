"""Certificates of tiny random transformers, on native kernels and PyTorch."""

import pytest
from wrong import BONUS_OF_THE_PARENT, LOOP, exact, text

from paradecode.backends import open_backend
from paradecode.core.decoder import TARGET
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.machines import DRAFT, KINDS, checkpoint
from paradecode_lab.measure.certificate.certify import certify
from paradecode_lab.measure.certificate.distribution import Tally
from paradecode_lab.measure.certificate.places import find_places
from paradecode_lab.measure.certificate.plan import CertificatePlan, Claim, Trial
from paradecode_lab.measure.certificate.record import fingerprint

TEXTS = [text(str(n), tuple((t + n) % 60 + 1 for t in LOOP)) for n in range(6)]
PLAN = CertificatePlan(max_tokens=32, temperature=0.6, samples=150, places=2)


def engine(backend: str, dtype: str, seed: int = 0) -> Engine:
    if backend == "native":
        pytest.importorskip("paradecode.backends.native._core")
    else:
        pytest.importorskip("torch")
    model = open_backend(backend, *tiny_checkpoint("llama", seed), dtype=dtype, threads=1)
    return Engine({TARGET: model}, Limits(16, 512, 4096))


@pytest.mark.first(1)
@pytest.mark.parametrize(("backend", "dtype"), [("native", "q8"), ("torch", "fp64")])
def test_an_exact_method_passes(backend: str, dtype: str) -> None:
    found = certify(engine(backend, dtype), Claim.of(parse("prompt-lookup")), TEXTS, PLAN)
    assert (found.verdict, found.failures) == ("pass", [])


def test_trees_drawn_from_a_draft_model_keep_the_law() -> None:
    """Deep trees drawn without replacement keep the law if the verifier reads the draws."""
    pytest.importorskip("paradecode.backends.native._core")
    llama = next(kind for kind in KINDS if kind.name == "llama")
    models = {
        name: open_backend("native", *checkpoint(llama, blur), dtype="f32", threads=1)
        for name, blur in ((TARGET, 0.0), (DRAFT, 0.05))
    }
    claim = Claim.of(parse("draft-model(verifier=specinfer,model=any)"))
    small = Engine(models, Limits(16, 512, 4096))
    texts = [(text.id, [*text.token_ids, *text.token_ids]) for text in TEXTS]
    trial = Trial(small, claim, PLAN)
    places = find_places(trial, texts)
    tally = Tally(trial, claim.make, places, "law", lambda: None)
    tally.run(PLAN.samples)
    law = tally.result()
    assert len(places) == PLAN.places
    assert law.same_law
    assert law.enough_drafts
    assert law.drafted > 4 * law.samples
    assert 0 < law.accepted < law.drafted


def test_a_bug_is_caught() -> None:
    found = certify(engine("native", "f32"), exact(BONUS_OF_THE_PARENT), TEXTS, PLAN)
    assert found.verdict == "fail"
    (difference,) = found.equality.divergences
    # The native core computes a row in the same way in any batch.
    assert difference.rounding == 0.0
    assert not difference.near_tie


def test_the_fingerprint_is_the_weights_and_the_dtype() -> None:
    prints = [
        fingerprint(engine("native", dtype, seed).models[TARGET])
        for dtype, seed in (("f32", 0), ("f32", 0), ("f32", 1), ("q8", 0))
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_differences_of_pytorch_are_near_ties() -> None:
    """Rounding explains every difference of PyTorch in fp32 on a model with nearly tied tokens."""
    pytest.importorskip("torch")
    tied = tiny_checkpoint("qwen3", near_tie=True)
    model = open_backend("torch", *tied, dtype="fp32", threads=1)
    plan = CertificatePlan(24, temperature=0.0, keep_going=True, allow_near_ties=True)
    small = Engine({TARGET: model}, Limits(16, 512, 4096))
    found = certify(small, Claim.of(parse("prompt-lookup")), TEXTS[:3], plan)
    assert (found.verdict, found.failures) == ("pass", [])
