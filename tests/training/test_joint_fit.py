"""The joint sampler's layer learns, and the report tells how much there was to learn."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from unmasking_models import batched, quiet, texts

from paradecode.core.errors import InvalidInput
from paradecode_lab.training.unmasking import joint_fit
from paradecode_lab.training.unmasking.joint_fit import JointSettings, fit_joint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["llada", "dream"])
def test_the_layer_comes_nearer_than_the_stale_forward(kind):
    settings = JointSettings(width=32, depth=2, steps=120, batch=8, rate=3e-3)
    layer, report = fit_joint(batched(kind), texts(), settings, quiet)
    assert report.one.layer < report.one.stale
    assert 0 < report.few < 0.9  # Equal divergences would give 0.9.
    assert layer.facts["hidden_size"] == 64
    # A layer that training makes worse is not kept: the result is the initial layer, without
    # effect.
    _, same = fit_joint(batched(kind), texts(), replace(settings, steps=3, rate=30.0), quiet)
    assert same.one.stale == report.one.stale == same.one.layer
    for bad in (replace(settings, width=33), replace(settings, depth=9)):
        with pytest.raises(InvalidInput):
            fit_joint(batched(kind), texts(), bad, quiet)


def test_the_share_of_positions_that_have_most():
    assert joint_fit.share_of_most(np.array([0.0, 8.0, 1.0, 1.0, 0.0])) == 0.4
    assert joint_fit.share_of_most(np.ones(10)) == 0.9


def test_the_layer_is_chosen_on_a_bounded_number_of_texts(monkeypatch):
    """Validation uses a bounded number of texts, except for the figures of the report.

    Otherwise validation would take longer than training.
    """
    looked = []

    def divergence(layer, model, made, rows, depth, random):
        if not torch.is_grad_enabled():
            looked.append(len(rows))
        found = torch.stack([tensor.sum() for tensor in layer[1].values()])
        return found, found

    monkeypatch.setattr(joint_fit, "_divergence", divergence)
    settings = JointSettings(width=8, depth=2, steps=1, batch=8)
    _, report = fit_joint(batched("llada"), texts(600), settings, quiet)
    assert report.held_out > joint_fit.CHECKED
    looks, figures = 2, 2
    assert sum(looked) == 4 * (looks * joint_fit.CHECKED + figures * report.held_out)
