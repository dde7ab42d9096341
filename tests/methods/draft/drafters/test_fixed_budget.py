"""Tests that ``budget=fixed`` drafts at any cost, and that other budgets avoid costly rows."""

from pathlib import Path

import pytest
from small_models import deep, engine, serve

from drafting import Request, hashed, play
from paradecode.engine.cost import CostCurve
from paradecode.engine.sequence import LiveSequence
from paradecode.testing.draft_heads import KINDS, random_head

DEEP = deep(share=1.0)  # No exit says what the last layer says, so ``del`` would rest.
COUNT = 4
DEAR = CostCurve((1, 64), (64,), ((1e-6, 1.0),))
"""Costs at which a second row takes longer than 10,000 forwards, and a network longer than one."""
PLAIN = ("jacobi", "lookahead", "del", "layer-skip", "swift")
METHOD = {"eagle3": "eagle", "medusa-own": "medusa", "clover-2": "clover"}
HEADS = ("ppd", "hidden-transfer", *KINDS)


def decoded(spec: str, curve: CostCurve | None, **limits: int) -> LiveSequence:
    eng = engine(DEEP, **limits)
    eng.load.curve = curve
    return serve(eng, [spec], ignore_eos=True)[0]


def drafts(sequence: LiveSequence) -> list[list[int]]:
    return [step.tree.tokens.tolist() for step in sequence.trace]


@pytest.mark.first(8)
@pytest.mark.parametrize("method", [*PLAIN, *HEADS])
def test_drafts_are_those_of_a_machine_where_they_cost_nothing(method: str, tmp_path: Path) -> None:
    own = "" if method in PLAIN else f"head='{random_head(method, DEEP[0], tmp_path)}',"
    name = METHOD.get(method, method)
    spec = f"{name}({own}budget=fixed,num_speculative_tokens={COUNT})"
    dear, free = decoded(spec, DEAR), decoded(spec, None)
    assert drafts(dear) == drafts(free)
    room, text = dear.params.max_tokens, 0
    for step in dear.trace:
        # The first two forwards may have nothing to draft from, and the last ones too little room.
        assert len(step.tree) > 0 or text < 2 or room - text <= COUNT
        text += len(step.tokens)
    assert decoded(f"{name}({own[:-1]})", DEAR).stats.drafted < dear.stats.drafted / 2


@pytest.mark.parametrize("method", ["ppd", "hidden-transfer"])
def test_rows_that_have_no_room_once_are_there_again(method: str, tmp_path: Path) -> None:
    """Rows for the next draft that found no free slot in one step get one in a later step."""
    head = random_head(method, DEEP[0], tmp_path)
    spec = f"{method}(head='{head}',budget=fixed,num_speculative_tokens={COUNT})"
    made = drafts(decoded(spec, DEAR, draft_tokens=COUNT))
    assert sum(len(draft) == COUNT for draft in made) > len(made) / 4


@pytest.mark.parametrize("spec", [
    "copyspec", "suffix", "suffix(mode=path,max_spec_factor=4.0)", "token-recycling", "aded",
    "stand", "retrieval", "rasd", "input-copy", "predicted-output", "suffix+token-recycling",
    "copyspec+jacobi+stand(num_speculative_tokens=12)",
])  # fmt: skip
def test_with_steep_costs_hardly_anything_is_drafted(spec: str) -> None:
    """Where every row costs a full step, a random text is decoded with almost no drafts."""
    seq = Request([1, 2, 3], 120, curve=lambda rows: rows)
    play(spec, seq, hashed(32, memory=4))
    assert sum(len(tree) for tree in seq.trees) < 30
