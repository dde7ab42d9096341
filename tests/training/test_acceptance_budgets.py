"""Budgets with trained parts, in the engine: they shape drafts and change no output token."""

import numpy as np
import pytest
from acceptance_models import PROMPTS, head, pair, selector, serve

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.methods.draft.budgets.delayed import divergence, unit
from paradecode.methods.draft.budgets.shapes import Action

SPEC = {"method": "draft-model", "num_speculative_tokens": 6}


def shapes_of(sequence) -> list[list[int]]:
    """Return the parents of each verified tree, without the last steps, where room may run out."""
    return [step.tree.parents.tolist() for step in sequence.trace[1:-8]]


@pytest.mark.first(1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["draft-model", "layer-skip", "layer-skip+prompt-lookup"])
def test_outputs_are_those_of_plain_decoding(tmp_path, temperature, method):
    head(blocks=2, seed=3).save(tmp_path / "head")
    selector(5, seed=3).save(tmp_path / "selector")
    head_spec = {"budget": "specdec++", "acceptance_head": str(tmp_path / "head")}
    tree_spec = {"budget": "delayed", "tree_selector": str(tmp_path / "selector")}
    plain = [s.output for s in serve(pair(), "greedy", temperature=temperature)]
    for spec in (head_spec, tree_spec):
        for verifier in ("coupled", "traversal"):
            if verifier != "coupled" and temperature:
                continue  # Exact in distribution: other tokens of the same law.
            made = {**SPEC, "method": method.split("+"), **spec, "verifier": verifier}
            served = serve(pair(), made, temperature=temperature)
            assert [s.output for s in served] == plain, made


@pytest.mark.parametrize(("logit", "length"), [(-9.0, 2), (9.0, 6)])
def test_a_head_ends_the_draft_one_token_after_its_doubt(tmp_path, logit, length):
    """A draft ends one token after the first one that the head expects to be rejected.

    The head judges a token by its row, which is known only after the next token has been drawn.
    """
    head(logit=logit).save(tmp_path / "head")
    spec = {**SPEC, "width": 1, "budget": "specdec++", "acceptance_head": str(tmp_path / "head")}
    for sequence in serve(pair(), spec):
        assert {len(parents) for parents in shapes_of(sequence)} == {length}


def test_the_threshold_is_on_the_product(tmp_path):
    """The threshold applies to the probability that any token of the draft is rejected.

    1 - 0.9^4 is the first above 0.3, so four tokens are judged, and a fifth is drafted.
    """
    head(logit=float(np.log(9))).save(tmp_path / "head")
    spec = {**SPEC, "width": 1, "budget": "specdec++", "threshold": 0.3}
    (sequence, *_) = serve(pair(), {**spec, "acceptance_head": str(tmp_path / "head")})
    assert {len(parents) for parents in shapes_of(sequence)} == {5}


def test_a_head_that_reads_estimates_serves_drafters_without_a_model(tmp_path):
    plain = [s.output for s in serve(pair(), "greedy")]
    spec = {"method": "prompt-lookup", "budget": "specdec++", "num_speculative_tokens": 6}
    longest = []
    for logit in (-9.0, 9.0):
        head(width=4, logit=logit, reads="estimates").save(tmp_path / f"head{logit}")
        served = serve(pair(), {**spec, "acceptance_head": str(tmp_path / f"head{logit}")})
        assert [s.output for s in served] == plain
        longest.append(max(len(step.tree) for s in served for step in s.trace))
    assert longest == [1, 6]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "action", [Action(1, 0, 0), Action(1, 0, 4), Action(2, 1, 2), Action(4, 0, 1), Action(3, 2, 1)]
)
def test_a_selector_shapes_every_draft_after_the_first(tmp_path, action):
    selector(6, action).save(tmp_path / "selector")
    spec = {**SPEC, "width": 4, "budget": "delayed", "tree_selector": str(tmp_path / "selector")}
    wanted = action.shape()
    for sequence in serve(pair(), spec):
        for tree in [step.tree for step in sequence.trace[2:-8]]:
            assert len(tree) == action.nodes
            assert max(tree.depths, default=0) == action.trunk + action.length
            assert sum(p == -1 for p in tree.parents) == wanted.get((), 0)


def test_a_selector_for_more_nodes_keeps_to_the_budget(tmp_path):
    selector(12, Action(2, 2, 5)).save(tmp_path / "selector")
    spec = {**SPEC, "budget": "delayed", "tree_selector": str(tmp_path / "selector")}
    for sequence in serve(pair(), spec):
        assert max(len(step.tree) for step in sequence.trace) <= 6


def test_parts_for_other_models_are_refused_when_they_meet_them(tmp_path):
    head(width=7).save(tmp_path / "head")
    selector(6, width=7).save(tmp_path / "selector")
    for spec in (
        {"budget": "specdec++", "acceptance_head": str(tmp_path / "head")},
        {"budget": "delayed", "tree_selector": str(tmp_path / "selector")},
    ):
        with pytest.raises(InvalidInput, match="train one with"):
            serve(pair(), {**SPEC, **spec}, PROMPTS[:1])


def test_divergence_is_the_whole_sum_for_small_vocabularies():
    random = np.random.default_rng(0)
    p, q = random.standard_normal((2, 1, 50)) * 3
    log_p, log_q = (x - np.log(np.exp(x).sum()) for x in (p, q))
    expected = float((np.exp(log_p) * (log_p - log_q)).sum())
    assert divergence(ArrayLogits(p), ArrayLogits(q)) == pytest.approx(expected, rel=1e-5)
    banned = p.copy()
    banned[0, :10] = -np.inf
    assert np.isfinite(divergence(ArrayLogits(banned), ArrayLogits(q)))
    assert np.isfinite(divergence(ArrayLogits(q), ArrayLogits(banned)))


def test_unit_scale_survives_what_float32_cannot_square():
    states = np.array([[3e30, -3e30], [1.0, 1.0], [0.0, 0.0]], np.float32)
    assert unit(states)[:2] == pytest.approx(np.array([[1, -1], [1, 1]]), rel=1e-3)
    assert np.isfinite(unit(states)).all()
