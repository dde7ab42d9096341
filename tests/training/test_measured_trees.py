"""Parts that `paradecode train` measures: rates of nodes in trees, and parts fitted for budgets."""

import json
from collections import Counter

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.draft.drafters.stand import NgramDistributions
from paradecode_lab.training.acceptance import draft_tree
from paradecode_lab.training.acceptance.draft_tree import Recorded


def answer(begun: tuple[int, ...], tokens: list[int], best: list[list[int]]) -> Recorded:
    drafter = Recorded()
    drafter.begun = begun
    chances = np.array([0.6, 0.4])
    drafter.rows = [(t, np.array(ids, np.int32), chances) for t, ids in zip(tokens, best)]
    return drafter


def test_drafts_are_judged_by_what_was_known_before_them():
    """Drafts are judged only by what was known before them.

    The text runs 1 2 3 1 2 3 ...; the model likes 9 best, so the right token is second.
    """
    tokens = [3, 1, 2] * 4
    drafter = answer((1, 2), tokens, [[9, token] for token in tokens])
    right = Counter()
    drafts = draft_tree._judge(NgramDistributions(), drafter, 0.0, 0, right)
    # Three drafts know nothing. The fourth knows every pair, and continues to the end.
    assert drafts == 4
    assert right == {(1,) * depth: 1 for depth in range(1, 10)}
    again = Counter()
    assert draft_tree._judge(NgramDistributions(), drafter, 0.0, 0, again) == 4
    assert again == right


def test_drawn_candidates_come_in_the_order_of_their_draws():
    """Above temperature 0, the order of two candidates is drawn by their probabilities.

    The likelier one must come first as often as it is drawn first.
    """
    tokens = [3, 1, 2] * 400
    drafter = answer((1, 2), tokens, [[token, 9] for token in tokens])
    right = Counter()
    draft_tree._judge(NgramDistributions(), drafter, 1.0, 7, right)
    first = right[(0,)] / (right[(0,)] + right[(1,)])
    assert first == pytest.approx(0.6, abs=0.12)
    cold = Counter()
    draft_tree._judge(NgramDistributions(), drafter, 0.2, 7, cold)
    assert cold[(0,)] > 4 * cold[(1,)]


def decodes_plainly(spec: str) -> None:
    with LLM() as llm:
        plain, made = (
            llm.complete("The three primary colours are", max_tokens=24, decoder=decoder)
            for decoder in (None, spec)
        )
    assert made.token_ids == plain.token_ids


@pytest.mark.slow
@pytest.mark.parametrize(("command", "budget", "setting"), [
    ("acceptance-head", "specdec++", "acceptance_head"),
    ("tree-selector", "delayed", "tree_selector"),
])  # fmt: skip
def test_from_prompts_to_a_file_that_decodes(tmp_path, command, budget, setting):
    pytest.importorskip("torch")
    out, samples = tmp_path / "out", tmp_path / "samples"
    arguments = [
        "--limit", 8, "--max-tokens", 48, "--epochs", 2, "--samples", samples, "--json",
        "--decoder", "layer-skip(skip=0.1,width=2,num_speculative_tokens=4)",
    ]  # fmt: skip
    first = run(command, out, *arguments)
    report = json.loads(first[first.index("{") :])
    assert report["training"] + report["held_out"] >= 100
    written = out.read_bytes()
    again = run(command, out, *arguments)  # From the samples, without decoding.
    assert json.loads(again[again.index("{") :]) == report
    assert out.read_bytes() == written
    with pytest.raises(InvalidInput, match="another workload"):
        run(command, out, *arguments, "--seed", 1)
    decodes_plainly(f"layer-skip(skip=0.1,budget='{budget}',{setting}='{out}')")
