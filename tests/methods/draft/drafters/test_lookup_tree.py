"""Tests of lookup trees: what grows first, how a copy continues, and equal outputs."""

from pathlib import Path

import pytest

from drafting import Request
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import BothOdds, Odds
from paradecode.methods.draft.drafters.prompt_lookup import LookupTree, PromptLookup
from paradecode.methods.draft.ngram_table import LEAST, RANKS, TableDrafts, load_ngrams
from paradecode_lab.training.ngrams.counting import count_ngrams

TEXTS = [[1, 2, 3, 4, 5]] * 30 + [[1, 2, 3, 6, 5]] * 20 + [[1, 2, 7, 8, 5]] * 15


def proposal(drafter: PromptLookup, tokens: list[int], limit: int) -> TokenTree:
    with pytest.raises(StopIteration) as done:
        next(drafter.propose(Request(tokens), limit))
    return done.value.value


@pytest.fixture
def table(tmp_path: Path) -> str:
    count_ngrams(TEXTS, 10, RANKS).save(tmp_path / "a.ngrams")
    return str(tmp_path / "a.ngrams")


def paths(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Return the tokens down to each node, and the probability that the node is reached."""
    found: dict[int, tuple[tuple[int, ...], float]] = {ROOT: ((), 1.0)}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist())):
        above, reach = found[parent]
        found[node] = (*above, token), reach * float(tree.estimates[node])
    return dict(list(found.values())[1:])


def test_the_likeliest_nodes_are_drafted(table: str) -> None:
    """A draft has the likeliest of all paths that the table allows."""
    drafts = TableDrafts(load_ngrams(table))
    every: dict[tuple[int, ...], float] = {}
    grown: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while grown:
        path, reach = grown.pop()
        kinds: dict[int, int] = {}
        for token, bucket in drafts.table.known((1, *path)[-4:]):
            kinds.setdefault(token, bucket)
        for token, bucket in kinds.items():
            chance = reach * drafts.odds.of(bucket)
            if chance >= LEAST and len(path) < 6:
                every[(*path, token)] = chance
                grown.append(((*path, token), chance))
    for limit in (1, 2, 3, 5, 8):
        found = paths(proposal(LookupTree(table=table), [9, 1], limit))
        assert len(found) == limit
        assert found == pytest.approx({path: every[path] for path in found}, rel=1e-5)
        worst = min(found.values())
        assert sum(chance > worst * 1.0001 for chance in every.values()) < limit


def test_a_copy_and_the_table_stand_side_by_side(table: str) -> None:
    text = [1, 2, 9, 0, 9, 1, 2]
    tree = proposal(LookupTree(table=table), text, 12)
    first = {token for path in paths(tree) for token in path[:1]}
    assert first == {9, 3, 7}  # Tokens of the text, and of the table.
    assert (9, 0) in paths(tree)  # The copy goes on.
    assert (3, 4) in paths(tree)  # So does the table.
    assert (3, 6) in paths(tree)


def test_a_long_copy_is_not_doubted(table: str) -> None:
    text = [5, 6, 7, 8, 9, 0, 4, 3] * 4 + [1, 2, 9] + [5, 6, 7, 8, 9, 0, 4, 3] * 4 + [1, 2]
    tree = proposal(LookupTree(table=table), text, 4)
    assert tree.tokens.tolist() == [9, 5, 6, 7]


def test_without_a_table_it_is_a_chain() -> None:
    text = [1, 2, 3, 4, 0, 1, 2]
    tree, chain = proposal(LookupTree(), text, 4), proposal(PromptLookup(), text, 4)
    assert tree.tokens.tolist() == chain.tokens.tolist()
    assert tree.estimates.tolist() == chain.estimates.tolist()


def test_odds_of_two_origins_are_kept_apart() -> None:
    one, other = Odds([0.5, 0.5]), Odds([0.5])
    both = BothOdds(one, other)
    both.update(2, 1, 1)
    both.update(0, 0, 1)
    assert (both.of(0), both.of(1), both.of(2)) == (one.of(0), 0.5, other.of(0))
    assert both.of(0) < 0.5 < both.of(2)
