"""Fitted parts: NumPy must repeat what PyTorch computed, and training must learn."""

import numpy as np
import pytest
from acceptance_models import head, selector

torch = pytest.importorskip("torch")

from paradecode.backends.native.heads import run_networks
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.delayed import Situation, unit
from paradecode.methods.draft.budgets.networks import PROJECTED, SCALARS, STATES, choices
from paradecode_lab.training.acceptance.head_fit import HeadSettings, fit_head
from paradecode_lab.training.acceptance.head_samples import HeadSamples
from paradecode_lab.training.acceptance.selector_fit import SelectorSettings, fit_selector
from paradecode_lab.training.acceptance.selector_samples import (
    SelectorSamples,
    seconds_of,
    tokens_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def samples(count: int = 3000, width: int = 16, seed: int = 0) -> HeadSamples:
    """Draw tokens whose acceptance depends on one direction of their states.

    The draft's probability tells less about it.
    """
    random = np.random.default_rng(seed)
    states = random.standard_normal((count, width)).astype(np.float32)
    chance = 1 / (1 + np.exp(-4 * states[:, 0]))
    accepted = (random.random(count) < chance).astype(np.float32)
    probability = np.clip(0.5 + 0.1 * accepted + 0.2 * random.standard_normal(count), 0.01, 0.99)
    prompt = np.arange(count) // 50
    return HeadSamples(
        "states", states, accepted, probability.astype(np.float32), prompt.astype(np.float32)
    )


def positions(count: int = 2000, width: int = 12, seed: int = 0) -> SelectorSamples:
    """Draw positions whose draft state tells whether a long draft or no draft will be right."""
    random = np.random.default_rng(seed)
    good = np.repeat(random.random(count // 10 + 1) < 0.5, 10)[: count + 8]
    options = choices(6)
    tokens = tokens_of(np.where(good, 0, 4), options)[:count]
    states = [random.standard_normal((len(tokens), width)).astype(np.float32) for _ in STATES]
    states[2][:, 0] = np.where(good[: len(tokens)], 3.0, -3.0)
    scalars = random.standard_normal((len(tokens), len(SCALARS))).astype(np.float32)
    scalars[:, -1] = 5.0
    draft, verify = [0.2] * 4, [1 + 0.1 * nodes for nodes in range(7)]
    seconds = np.array([seconds_of(action, draft, verify) for action in options], np.float32)
    prompt = (np.arange(len(tokens)) // 50).astype(np.float32)
    return SelectorSamples(*states, scalars, 6, tokens, seconds, prompt)


def predict(made, states):
    return run_networks(made.network, [{"x": states}])[0][:, 0]


def scores(made, situation):
    return run_networks(made.network, [situation])[0]


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_the_head_is_its_formula(blocks):
    made = head(width=8, blocks=blocks, logit=0.3, seed=2)
    states = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32)
    weight, bias, out = (
        torch.from_numpy(a) for a in map(made.tensors.get, ("weight", "bias", "out"))
    )
    x = torch.from_numpy((unit(states) - made.tensors["mean"]) * made.tensors["scale"])
    for _ in range(blocks):
        x = x + torch.nn.functional.silu(x @ weight + bias)
    expected = torch.sigmoid(x @ out[:-1] + out[-1]).numpy()
    assert predict(made, states) == pytest.approx(expected, abs=1e-5)


def test_the_selector_is_its_formula():
    made, random = selector(6, width=7, seed=1), np.random.default_rng(2)
    states = [random.standard_normal((5, 7)).astype(np.float32) for _ in STATES]
    scalars = random.standard_normal((5, len(SCALARS))).astype(np.float32)
    t = {name: torch.from_numpy(values) for name, values in made.tensors.items()}
    parts = [(torch.from_numpy(scalars) - t["mean"]) * t["scale"]]
    for name, given in zip(STATES, states, strict=True):
        x = torch.from_numpy(unit(given)) @ t[f"{name}.weight"] + t[f"{name}.bias"]
        norm = t[f"{name}.gain"], t[f"{name}.shift"]
        parts.append(torch.nn.functional.layer_norm(x, (PROJECTED,), *norm))
    x = torch.cat(parts, dim=1)
    for name in ("inner", "later"):
        x = x @ t[f"{name}.weight"] + t[f"{name}.bias"]
        x = torch.nn.functional.gelu(x, approximate="tanh")
    expected = x @ t["out.weight"] + t["out.bias"]
    given = vars(Situation(*states, scalars))
    assert scores(made, given) == pytest.approx(expected.numpy(), abs=1e-4)


def test_a_head_learns_what_states_say_and_the_report_compares_it():
    given = samples()
    made, report = fit_head(given, HeadSettings(blocks=1, rate=1e-2), lambda *_: None)
    assert report.head.auc > 0.85 > report.probability.auc > 0.5
    assert report.constant.auc == 0.5
    assert report.unweighted.log_loss < report.constant.log_loss
    assert report.unweighted.calibration_error < report.head.calibration_error
    assert 0.1 < report.held_out / len(given) < 0.2
    again, _ = fit_head(given, HeadSettings(blocks=1, rate=1e-2), lambda *_: None)
    assert np.array_equal(made.tensors["out"], again.tensors["out"])
    assert np.array_equal(made.tensors["weight"], again.tensors["weight"])


def test_rejections_weigh_more():
    careful, _ = fit_head(samples(), HeadSettings(blocks=0, rate=1e-2), lambda *_: None)
    even, _ = fit_head(
        samples(), HeadSettings(blocks=0, rate=1e-2, rejection_weight=1.0), lambda *_: None
    )
    states = samples(seed=5).inputs
    assert predict(careful, states).mean() < predict(even, states).mean() - 0.1


def test_a_selector_learns_when_to_draft():
    made, report = fit_selector(positions(), SelectorSettings(epochs=8), lambda *_: None)
    assert report.selector.speed > 1.15
    assert report.selector.speed <= report.oracle.speed + 0.02
    assert report.constant.speed == 1.0
    other = positions(seed=7)
    chosen = [choices(6)[i] for i in scores(made, other.situation).argmax(axis=1)]
    good = other.q_now[:, 0] > 0
    nodes = np.array([action.nodes for action in chosen])
    assert nodes[good].mean() > nodes[~good].mean() + 2
    assert made.tensors["scale"][-1] == 0.0  # It never varied, so it is not looked at.
    again, _ = fit_selector(positions(), SelectorSettings(epochs=8), lambda *_: None)
    assert np.array_equal(made.tensors["out.weight"], again.tensors["out.weight"])


def test_too_few_samples_or_outcomes_are_refused():
    few, same = samples(50), samples()
    same.accepted[:] = 1.0
    for given in (few, same):
        with pytest.raises(InvalidInput, match="more prompts"):
            fit_head(given, HeadSettings(), lambda *_: None)
    with pytest.raises(InvalidInput, match="more prompts"):
        fit_selector(positions(40), SelectorSettings(), lambda *_: None)
