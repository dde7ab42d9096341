"""ETE decides across blocks, and tries several tokens where the model is not sure."""

import numpy as np
import pytest
from canvases import ATTENTION, MASK, PROMPT, run, steps, toy
from views import view_of

from paradecode.backends.interface import SpanResult
from paradecode.core.automaton import TokenAutomaton
from paradecode.core.logits import ArrayLogits
from paradecode.methods.canvas.policies.ete import ExploreThenExploit
from paradecode.methods.canvas.policies.threshold import Threshold
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend


def test_other_blocks_only_add_commits() -> None:
    rng = np.random.default_rng(3)
    beyond = 0
    for _ in range(100):
        view = view_of(rng.uniform(0.5, 1.0, 16), window=(0, 4))
        plain = Threshold().decide(view).commit.tolist()
        for ahead, limit in ((1, 8), (2, 12), (9, 16)):
            policy = ExploreThenExploit(explore=0, ahead=ahead)
            made = policy.decide(view).commit.tolist()
            later = [at for at in range(4, limit) if view.confidence[at] >= 0.9]
            assert made == plain + later
            beyond += len(later)
    assert beyond > 100


def test_explores_where_it_knows_least() -> None:
    confidence = np.array([0.5, 0.3, 0.2, 0.4, 0.25, 0.1])
    one = ExploreThenExploit(explore=1).decide(view_of(confidence, window=(0, 5)))
    assert one.commit.tolist() == [0, 2]  # The surest, and the least sure of the block.
    more = ExploreThenExploit(explore=3).decide(view_of(confidence, window=(0, 5)))
    assert more.commit.tolist() == [0, 2, 4]  # 1 and 3 are next to 2.
    enough = ExploreThenExploit(explore=3, enough=1).decide(view_of(confidence, window=(0, 5)))
    assert enough.commit.tolist() == [0]


def test_decides_the_next_block_in_the_forward_of_this_one() -> None:
    made = run(toy("full", 0), "ete(threshold=0.5,ahead=2,block_length=8)")
    assert made.forwards == 1
    assert run(toy("full", 0), "threshold(threshold=0.5,block_length=8)").forwards == 3


def test_bits_of_a_round_are_bounded_without_exploring() -> None:
    """A token that passes the threshold carries at most -log2(threshold) bits."""
    rng = np.random.default_rng(4)
    bound = -np.log2(0.8)
    explored = 0.0
    for _ in range(100):
        view = view_of(rng.uniform(0.1, 1.0, 12))
        for count in (0, 2):
            commit = ExploreThenExploit(threshold=0.8, explore=count, enough=99).decide(view).commit
            bits = -np.log2(view.confidence[commit])
            if count == 0:
                assert np.sort(bits)[:-1].sum() <= (len(bits) - 1) * bound + 1e-9
                assert bits.max() <= bound or len(bits) == 1
            explored += bits.sum() if count else -bits.sum()
    assert explored > 100


@pytest.mark.parametrize("kind", ATTENTION)
def test_trying_tokens(kind: str) -> None:
    """Each position is decided once; sometimes another token than the proposal wins."""
    others = 0
    for surprise in (500, 900):
        for cache in ("none", "prefix", "dual"):
            spec = f"block_length=8,cache={cache})"
            one = run(toy(kind, surprise), "ete(branches=1," + spec)
            three = run(toy(kind, surprise), "ete(branches=3," + spec)
            assert three.forwards <= len(three.output) + 1
            decided = [at for step in steps(three) for at in step.offsets]
            assert len(set(decided)) == len(decided)
            others += one.output != three.output
    assert others


def test_the_rival_with_the_longest_cascade_wins() -> None:
    """The token wins after which most positions pass the threshold, though it is not the best.

    The model becomes sure of all other positions after one token, which is not its first choice.
    """
    made = run(Lock(toy("full").config), "ete(branches=3,blocks=full)", max_tokens=12)
    assert 9 in made.output
    assert made.forwards == 2
    stuck = run(Lock(toy("full").config), "ete(blocks=full)", max_tokens=12)
    assert 9 not in stuck.output
    assert stuck.forwards > 2
    key = next(step for step in steps(made) if 9 in step.tokens)
    assert key.confidences[key.tokens.index(9)] == pytest.approx(np.exp(-0.5) / LOCKED, rel=1e-6)


def test_a_token_that_the_constraint_left_out_is_not_tried() -> None:
    """The loop does not try tokens at a position that the constraint took out of the decision.

    The constraint allows repetitions of 44 and 55, so the explored token may not fit the surest
    one.
    """
    pairs = TokenAutomaton.of([{4: 1, 5: 2}, {4: 3}, {5: 3}, {4: 1, 5: 2}], [3], 29)
    left_out = 0
    for kind in ATTENTION:
        for prompt in ((8, 5, 6), (8,), (9, 4, 1, 7)):
            decoder = parse("ete(branches=4,threshold=0.99)")()
            show = decoder.show

            def watched(view, decision, decoder=decoder, show=show):
                nonlocal left_out
                canvas, row = decoder.canvas, decoder.policy.explored
                left_out += row is not None and canvas.masked[view.positions[row]]
                assert (canvas.tokens[canvas.masked] == MASK).all()
                show(view, decision)

            decoder.show = watched
            run(toy(kind), lambda decoder=decoder: decoder, prompt, 8, pairs, ignore_eos=False)
    assert left_out


KEYS = np.array([0.0, -0.25, -0.5])
"""Logits of tokens 7, 8 and 9 at first; those of the other tokens are -2."""
LOCKED = np.exp(KEYS).sum() + 25 * np.exp(-2.0)


class Lock(ToyBackend):
    """A model that is unsure until token 9 is on the canvas, and then sure of 5 everywhere."""

    def forward(self, spans):
        return [self._one(span) for span in spans]

    def _one(self, span):
        rows = np.full((len(span.logits), 29), -2.0)
        rows[:, 7:10] = KEYS
        for index, row in enumerate(span.logits.tolist()):
            at = span.positions >= len(PROMPT)
            if (span.tokens[span.mask[row] & at] == 9).any():
                rows[index, 5] = 20.0
        return SpanResult(ArrayLogits(rows))
