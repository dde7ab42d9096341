"""Tests of nested exits against an implementation in which exits compute the whole text anew."""

from collections import Counter

import numpy as np
import pytest
from small_models import PROMPT, backend, deep, engine, permuted, serve, spelling

from paradecode.backends.interface import PAGE, Span
from paradecode.core.decoder import DRAFT
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits, Warp
from paradecode.methods.draft.budgets.networks import HIDDEN, ResidualHead
from paradecode.methods.draft.budgets.specdec import SpecDecPP
from paradecode.methods.draft.drafters import draft_model
from paradecode.methods.draft.drafters.draft_model import usual_exits
from paradecode.methods.specs import parse

TARGET, SMALL = deep(share=0.3), deep(share=0.2)
SURE = 0.5
"""Threshold that some guesses of every exit of SMALL exceed, and some do not."""
CHAIN = "num_speculative_tokens=5,budget=fixed"


class Literal:
    """The exits of a model, computed without a cache.

    Attributes:
        left: how often each exit was the first sure one.
    """

    def __init__(self, exits: tuple[int, ...], sure: float, model=SMALL) -> None:
        self.exits, self.sure, self.model = exits, sure, backend(model)
        self.model.reserve(8)
        self.left = Counter[int]()

    def row(self, text: list[int], exits: tuple[int, ...] = ()) -> Logits:
        """Return the logits of the first exit that is sure of the token after ``text``."""
        return self.leaves(text, exits)[0]

    def leaves(self, text: list[int], exits: tuple[int, ...] = ()) -> tuple[Logits, np.ndarray]:
        """Return the same logits, and the state at that exit."""
        for exit in exits or self.exits:
            logits, state = self._whole(text, exit)
            if logits.probabilities(Warp(1.0)).max() >= self.sure:
                break
        self.left[exit] += 1
        return logits, state

    def _whole(self, text: list[int], exit: int) -> tuple[Logits, np.ndarray]:
        count = len(text)
        none = np.full(count, -1, np.int32)
        at = np.arange(count, dtype=np.int32)
        pages = np.arange(8, dtype=np.int32)
        assert count <= 8 * PAGE
        span = Span(
            pages, np.array(text, np.int32), at, none, 0, at[-1:], layers=(*range(exit),),
            hidden=(exit - 1,),
        )  # fmt: skip
        (result,) = self.model.forward([span])
        return result.logits, result.hidden[exit - 1][-1]


@pytest.mark.parametrize("exits", [(2, 4, 6), (1, 3), (6,)])
def test_a_token_leaves_at_the_first_exit_that_is_sure_of_it(exits):
    """Each draft token is the choice of the first exit that is sure of it.

    Deeper exits choose right only if they have caught up with all rows that left earlier.
    """
    literal = Literal(exits, SURE)
    spec = f"s2d(exits='{' '.join(map(str, exits))}',sure={SURE},{CHAIN})"
    (sequence,) = serve(engine(TARGET, SMALL), [spec], max_tokens=40, ignore_eos=True)
    text = list(PROMPT)
    for step in sequence.trace:
        wanted: list[int] = []
        for _ in range(len(step.tree)):  # The prompt runs through all layers up to the last exit.
            first = exits[-1:] if len(text) == len(PROMPT) and not wanted else exits
            wanted.append(int(literal.row([*text, *wanted], first).argmax()[0]))
        assert step.tree.tokens.tolist() == wanted
        text += step.tokens
    assert all(literal.left[exit] >= 3 for exit in exits)
    assert 0 < sequence.stats.accepted < sequence.stats.drafted


def test_tokens_that_it_spells_in_pieces_are_read_piece_by_piece():
    """Drafts are right if the draft model spells some of the target's tokens as several of its own.

    The draft model lacks every third token, so it has more rows than the text has tokens.
    """
    order, vocabulary = spelling(tokens=SMALL[0].vocab_size)
    small = permuted(SMALL, order)
    literal = Literal((2, 4, 6), SURE, small)
    spec = f"s2d(exits='2 4 6',sure={SURE},{CHAIN})"
    eng = engine(TARGET, small, vocabulary)
    (sequence,) = serve(eng, [spec], max_tokens=40, ignore_eos=True)
    text, spelled = list(PROMPT), 0
    for step in sequence.trace:
        own = vocabulary.translate(np.array(text)).tolist()
        wanted: list[int] = []
        for _ in range(len(step.tree)):
            first = (6,) if len(text) == len(PROMPT) and not wanted else (2, 4, 6)
            wanted.append(int(literal.row([*own, *wanted], first).argmax()[0]))
        assert step.tree.tokens.tolist() == order[wanted].tolist()
        spelled += len(step.tree) > 0 and any(token % 3 == 0 for token in text[len(PROMPT) :])
        text += step.tokens
    assert spelled > 5
    assert all(literal.left[exit] >= 3 for exit in (2, 4, 6))


def test_a_budget_reads_the_states_that_left(tmp_path, monkeypatch):
    """With a SpecDec++ head, a draft ends after a token that the head expects to be rejected."""
    width, seen = SMALL[0].hidden_size, []
    random = np.random.default_rng(1)
    tensors = {
        "mean": np.zeros(width), "scale": np.ones(width), "bias": np.zeros(width),
        "weight": np.zeros((width, width)), "out": random.standard_normal(width + 1),
    }  # fmt: skip
    made = {name: values.astype(np.float32) for name, values in tensors.items()}
    ResidualHead({"width": width, "blocks": 0, "reads": HIDDEN}, made).save(tmp_path / "head")
    see = SpecDecPP.see_draft

    def watched(self, seq, tree, nodes, rows):
        path = tree.tokens_to(int(nodes[0])) if len(tree) else []
        seen.append((seq.tokens.tolist(), path, rows.states))
        see(self, seq, tree, nodes, rows)

    monkeypatch.setattr(SpecDecPP, "see_draft", watched)
    literal = Literal((2, 4, 6), SURE)
    budget = f"specdec++(head='{tmp_path / 'head'}',threshold=0.6)"
    spec = f"s2d(exits='2 4 6',sure={SURE},num_speculative_tokens=5,budget={budget})"
    (sequence,) = serve(engine(TARGET, SMALL), [spec], max_tokens=40, ignore_eos=True)
    for text, path, states in seen:
        first = (6,) if len(text) == len(PROMPT) and not path else (2, 4, 6)
        _, state = literal.leaves([*text, *path], first)
        assert np.allclose(states, state[None], atol=1e-4)
    assert all(literal.left[exit] >= 3 for exit in (2, 4, 6))
    chains = {len(step.tree) for step in sequence.trace[1:-5]}
    assert len(chains) > 1  # The head decides.


def test_tokens_are_drawn_from_the_row_of_their_exit():
    literal, seen = Literal((2, 4, 6), SURE), []

    def build():
        decoder = parse(f"s2d(exits='2 4 6',sure={SURE},verifier=rejection,{CHAIN})")()
        verify = decoder.verify

        class Watched(type(verify)):
            def __call__(self, seq, tree, reply):
                seen.append((seq.tokens.tolist(), tree))
                return verify(seq, tree, reply)

        decoder.verify = Watched()
        return decoder

    serve(engine(TARGET, SMALL), [build], temperature=0.9, max_tokens=40, ignore_eos=True)
    for text, tree in seen[1:]:
        assert set(tree.drawn) == set(range(-1, len(tree) - 1))
        for node, drawn in tree.drawn.items():
            q = literal.row([*text, *tree.tokens_to(node)]).probabilities(Warp(0.9))[0]
            assert np.allclose(drawn.probabilities, q[drawn.ids], atol=1e-5)
            assert drawn.probabilities.sum() == pytest.approx(1)
    assert all(literal.left[exit] >= 3 for exit in (2, 4, 6))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_a_threshold_above_one_it_is_a_draft_model(temperature):
    specs = [f"draft-model(width=1,{CHAIN})", f"s2d(sure=1.5,{CHAIN})"]
    whole, nested = (
        serve(engine(TARGET, SMALL), [spec], temperature=temperature, ignore_eos=True)[0]
        for spec in specs
    )
    trees = [[step.tree.tokens.tolist() for step in one.trace] for one in (whole, nested)]
    assert trees[0] == trees[1]
    assert any(trees[0])


def test_with_a_threshold_of_zero_deeper_layers_never_run_behind_the_prompt():
    eng = engine(TARGET, SMALL)
    model, ran = eng.models[DRAFT], []
    forward = model.forward
    model.forward = lambda spans: (
        ran.extend((s.layers, len(s.slots)) for s in spans) or forward(spans)
    )
    serve(eng, [f"s2d(sure=0.0,{CHAIN})"], ignore_eos=True)
    first, *later = ran
    assert first == (None, len(PROMPT))
    assert {layers for layers, _ in later} == {(0, 1, 2)}
    assert max(rows for _, rows in later) <= 2  # Rows of accepted tokens are not run again.


def test_many_rows_catch_up_in_pieces(monkeypatch):
    spec = f"s2d(exits='2 6',sure={SURE},{CHAIN})"
    found = []
    for piece in (64, 2):
        monkeypatch.setattr(draft_model, "PIECE", piece)
        (sequence,) = serve(engine(TARGET, SMALL), [spec], max_tokens=40, ignore_eos=True)
        found.append([step.tree.tokens.tolist() for step in sequence.trace])
    assert found[0] == found[1]


def test_exits():
    assert usual_exits(12) == (6, 9, 12)
    assert usual_exits(30) == (15, 23, 30)
    assert usual_exits(1) == (1,)
    assert usual_exits(2) == (1, 2)


@pytest.mark.parametrize("exits", ["6 3", "0 4", "3 3", "3:6", "-1", "1.5", "999999"])
def test_exits_that_are_none_are_refused(exits):
    with pytest.raises(InvalidInput, match="exits"):
        parse({"method": "s2d", "exits": exits})


def test_an_exit_behind_the_last_layer_is_refused():
    with pytest.raises(InvalidInput, match="has 6 layers"):
        serve(engine(TARGET, SMALL), ["s2d(exits='3 7')"])
