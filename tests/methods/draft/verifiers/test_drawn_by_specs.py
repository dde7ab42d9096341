"""Tests of methods given by specs: the exact distribution of what they draw and verify.

The drafter, its budget and its verifier are the package's own. Only the draws are replaced by an
oracle that takes every branch in turn.
"""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from chisquare import SIGNIFICANT, p_value
from languages import RULES, Builder, Language, distance, drafts, emitted

from drafting import Request
from paradecode.core import tree_builder
from paradecode.core.decoder import TARGET, Forward, ModelFacts, Reply
from paradecode.core.logits import ArrayLogits
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.core.tree_builder import TreeBuilder
from paradecode.methods.draft import greedy_draws
from paradecode.methods.draft.budgets import estimated
from paradecode.methods.draft.budgets.shapes import Action
from paradecode.methods.draft.drafters.draft_model import Deer
from paradecode.methods.draft.drafters.stand import NgramDistributions
from paradecode.methods.specs import parse

EXACT = 1e-12
PROMPT = (0, 0)


class Alone(Request):
    """A request with a draft model that has seen everything but the last token.

    It may also draft on masks: its mask token is not in the target's vocabulary.
    """

    def room_for(self, model: str) -> int:
        return self.room

    def about(self, model: str = TARGET) -> ModelFacts:
        return replace(super().about(model), attention="full", mask_token=self.vocabulary)

    def found(self, model: str = TARGET) -> int:
        return 0


def stored(language: Language) -> NgramDistributions:
    """Return what ``stand`` has learned if the model's distribution was q."""
    store, ids = NgramDistributions(), np.arange(language.v, dtype=np.int32)
    for size in range(3):
        for word in product(range(language.v), repeat=size):
            store.add((*PROMPT, *word), ids, language.q(word))
    return store


def by_spec(spec: str, seed: int = 0) -> Builder:
    """Return the trees of a method whose draft model has the language's q.

    Noise that decides on no token (the times of stochastic beams) comes from this seed. The
    distribution must be right for each seed.
    """

    method = parse(spec)

    def build(language: Language, chance) -> TokenTree:
        def draw_iid(ids, q, base, count, skip=0):
            return [int(ids[chance.draw(q)]) for _ in range(count)]

        def draw_swor(ids, q, base, count, skip=0):
            rest, order = q.copy(), []
            for _ in range(min(count, int((q > 0).sum()))):
                order.append(int(ids[chance.draw(rest)]))
                rest[ids == order[-1]] = 0.0
            return order

        decoder = method()
        stores = {"stand": stored(language)} if method.method.name == "stand" else {}
        seq = Alone(PROMPT, 9, stores, language.v, temperature=1.0, seed=seed)
        drafter, budget = decoder.drafter, decoder.budget
        words: dict[int, tuple[int, ...]] = {ROOT: ()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tree_builder, "draw_iid", draw_iid)
            patch.setattr(tree_builder, "draw_swor", draw_swor)
            patch.setattr(greedy_draws, "draw_swor", draw_swor)
            patch.setattr(estimated, "draw_swor", draw_swor)
            steps = drafter.propose(seq, budget.limit(seq))
            reply = None
            while True:
                try:
                    forward: Forward = steps.send(reply)
                except StopIteration as done:
                    return budget.cut(seq, done.value)
                rows = [()]
                if len(forward.tree):
                    paths = zip(forward.under.tolist(), forward.tree.tokens.tolist())
                    rows = [(*words[under], token) for under, token in paths]
                    words.update(enumerate(rows, len(words) - 1))
                if forward.logits is not None:  # Of masks: their rows know no draft token.
                    rows = [(0,) * level for level in range(len(forward.logits))]
                q = np.stack([[*language.q(path), 0.0] for path in rows])
                with np.errstate(divide="ignore"):
                    reply = Reply(ArrayLogits(np.log(q)))

    return build


Trees = list[tuple[float, TokenTree]]


def trees_of(spec: str, language: Language, seed: int = 0) -> Trees:
    return drafts(by_spec(spec, seed), language)


def law(spec: str, language: Language, trees: Trees | None = None) -> dict:
    """Return the distribution of what the method emits; ``trees`` are its draws if known."""
    rule = RULES[parse(spec).settings["verifier"]]
    return emitted(rule, trees_of(spec, language) if trees is None else trees, language)


SPECS = [
    "draft-model(budget=dyspec,num_speculative_tokens=3,verifier=rsd)",
    "draft-model(budget=dyspec,num_speculative_tokens=4,verifier=rsd)",
    "draft-model(budget=dyspec,num_speculative_tokens=4,verifier=traversal)",
    "draft-model(budget=delayed,num_speculative_tokens=4,verifier=specinfer)",
    "draft-model(budget=delayed,num_speculative_tokens=4,verifier=spectr)",
    "draft-model(budget=delayed,num_speculative_tokens=4,verifier=rsd)",
    "draft-model(budget=fixed,num_speculative_tokens=3,verifier=specinfer)",
    "draft-model(budget=fixed,num_speculative_tokens=3,verifier=spectr)",
    "draft-model(budget=sequoia,num_speculative_tokens=3,verifier=specinfer)",
    "draft-model(budget=sequoia,num_speculative_tokens=3,verifier=rsd)",
    "deer(budget=fixed,num_speculative_tokens=3,width=1,verifier=rejection)",
    "deer(budget=fixed,num_speculative_tokens=3,width=1,verifier=block)",
    "deer(budget=fixed,num_speculative_tokens=4,width=2,verifier=rsd)",
    "deer(budget=dyspec,num_speculative_tokens=4,verifier=traversal)",
    "deer(budget=fixed,num_speculative_tokens=3,verifier=specinfer)",
    "stand(num_speculative_tokens=3,verifier=rsd)",
    "stand(num_speculative_tokens=4,width=2,verifier=traversal)",
]


@pytest.fixture(autouse=True)
def a_trunk_and_two_branches(monkeypatch):
    """Choose for ``delayed`` a shape with a fork below a trunk, so that every case has one."""
    fork = Action(2, 1, 1).shape()
    monkeypatch.setattr(
        "paradecode.methods.draft.budgets.delayed.Delayed.choose", lambda budget, seq: fork
    )


@pytest.mark.first(4)
@pytest.mark.parametrize("spec", SPECS)
def test_what_users_write_has_the_law_of_the_target(spec):
    for seed in (1, 2):
        language = Language(seed)
        trees = trees_of(spec, language)
        assert all(tree.sampled for _, tree in trees)
        assert distance(law(spec, language, trees), language) < EXACT


@pytest.mark.parametrize("verifier", ["specinfer", "spectr"])
def test_multi_path_verifiers_get_draws_with_replacement(verifier):
    spec = f"draft-model(budget=delayed,num_speculative_tokens=4,verifier={verifier})"
    trees = [tree for _, tree in trees_of(spec, Language(1))]
    assert all(tree.mode(node) is Mode.IID for tree in trees for node in tree.drawn)
    forks = [tree.drawn[0] for tree in trees]
    assert {len(fork.order) for fork in forks} == {2}
    assert {len(set(fork.order)) for fork in forks} == {1, 2}  # Equal draws share a node.


def greedy_tree(language: Language, order: dict, count: int) -> list[tuple[int, int]]:
    """Draw DySpec's tree as in the paper, one node after another: (parent, token) as drawn."""
    slots, tree, words = [(1.0, ROOT, language.q(()))], [], {ROOT: ()}
    for _ in range(count):
        at = max(range(len(slots)), key=lambda i: (slots[i][0], -slots[i][1]))
        value, node, rest = slots.pop(at)
        below = [token for parent, token in tree if parent == node]
        token = order[words[node]][len(below)]
        words[len(tree)] = (*words[node], token)
        slots.append((value * rest[token], len(tree), language.q(words[len(tree)])))
        left = rest * (np.arange(language.v) != token)
        if left.sum() > 0:
            slots.append((value * (1 - rest[token]), node, left / left.sum()))
        tree.append((node, token))
    return tree


@pytest.mark.parametrize("count", [1, 3, 6, 9])
def test_dyspec_draws_the_tree_of_the_paper(count):
    spec = f"draft-model(budget=dyspec,num_speculative_tokens={count},verifier=rsd)"

    class Drawn:
        """A drafter whose draws come from given noise, so that both trees see the same draws."""

        def __init__(self, seed: int) -> None:
            self.random = np.random.default_rng(seed)

        def draw(self, weights) -> int:
            return int(self.random.choice(len(weights), p=weights / weights.sum()))

    for seed in range(40):
        language = Language(seed, vocabulary=4)
        tree = by_spec(spec)(language, Drawn(seed))
        words = {ROOT: (), **{node: tuple(tree.tokens_to(node)) for node in range(len(tree))}}
        order = {}
        for node in words:
            below = [int(tree.tokens[child]) for child in tree.children(node)]
            rest = [token for token in range(4) if token not in below]
            order[words[node]] = [*below, *rest]
        made = list(zip(tree.parents.tolist(), tree.tokens.tolist()))
        assert len(made) == count
        wanted = greedy_tree(language, order, count)
        assert made == wanted


BEAMS = {
    verifier: f"draft-model(budget=stochastic-beam(beams=2),num_speculative_tokens=4,{verifier})"
    for verifier in (
        "verifier=rsd", "verifier=traversal", "verifier=naive-tree", "verifier=rejection",
    )
}  # fmt: skip
SEEDS = range(6)


@pytest.mark.first(1)
@pytest.mark.parametrize("spec", BEAMS.values(), ids=BEAMS)
def test_beams_have_the_law_of_the_target_whenever_they_arrive(spec):
    """For six tables of arrival times the distribution is exact, and the trees differ."""
    language, shapes = Language(1), set()
    for seed in SEEDS:
        trees = trees_of(spec, language, seed)
        shapes |= {tuple(tree.parents.tolist()) for _, tree in trees}
        assert all(tree.sampled and len(tree) == 4 for _, tree in trees)
        assert distance(law(spec, language, trees), language) < EXACT
    assert shapes == {(-1, -1, 0, 0), (-1, -1, 0, 1)}


@pytest.mark.wide
def test_beams_that_arrive_by_what_they_are_are_found(monkeypatch):
    real = estimated.BeamDraws.know

    def know(self, *row):
        real(self, *row)
        self._arriving = [
            (time / drawn.of(token), node, rank, token, drawn)
            for time, node, rank, token, drawn in self._arriving
        ]

    monkeypatch.setattr(estimated.BeamDraws, "know", know)
    language, spec = Language(1), BEAMS["verifier=rsd"]
    laws = [law(spec, language, trees_of(spec, language, seed)) for seed in SEEDS]
    assert max(distance(each, language) for each in laws) > 1e-3


def test_beams_are_drawn_from_whole_texts():
    """The second level is a draw without replacement from the texts of two tokens, in order."""
    language, counts = Language(3), Counter[tuple]()
    ids = np.arange(language.v, dtype=np.int32)
    for seed in range(4000):
        seq, tree = Request(PROMPT, seed=seed), TreeBuilder()
        draws, wanted = estimated.BeamDraws(tree, 4, 2), [ROOT]
        words = {ROOT: ()}
        while wanted:
            for node in wanted:
                draws.know(seq.sampler, node, ids, language.q(words[node]), language.v)
            wanted = draws.draw()
            new = range(len(words) - 1, len(tree))
            words |= {node: (*words[tree.parents[node]], tree.tokens[node]) for node in new}
        counts[tuple(words[node] for node in new)] += 1
    texts = {
        (a, b): float(language.q(())[a] * language.q((a,))[b])
        for a, b in product(range(language.v), repeat=2)
    }
    pairs = {
        (one, two): texts[one] * texts[two] / (1 - texts[one])
        for one, two in permutations(texts, 2)
    }
    assert p_value(counts, pairs) > SIGNIFICANT
    assert p_value(counts, {pair: 1 / len(pairs) for pair in pairs}) < SIGNIFICANT


def biased(spec: str) -> float:
    languages = [Language(seed) for seed in (1, 2, 3)]
    return max(distance(law(spec, language), language) for language in languages)


def test_a_greedy_choice_that_looks_at_the_next_draw_is_found(monkeypatch):
    """A drafter that stops before an unlikely draw is biased, and enumeration finds this."""
    real = greedy_draws.GreedyDraws._draw_below

    def looks(self, node, value):
        order, drawn = self._laws[node]
        below = len(self.tree.children(node))
        if below < len(order) and drawn.of(order[below]) > 0.3:
            real(self, node, value)

    monkeypatch.setattr(greedy_draws.GreedyDraws, "_draw_below", looks)
    assert biased(SPECS[0]) > 1e-3


def test_equal_draws_that_are_counted_once_are_found(monkeypatch):
    real = Drawn.__post_init__

    def once(self):
        real(self)
        if self.order is not None:
            object.__setattr__(self, "order", tuple(dict.fromkeys(self.order)))

    monkeypatch.setattr(Drawn, "__post_init__", once)
    assert biased(SPECS[3]) > 1e-4


def test_a_draft_on_masks_that_is_cut_by_what_was_drawn_is_found(monkeypatch):
    """A draft that omits an unlikely last token is biased, and enumeration finds this."""
    real = Deer.propose

    def cut(self, seq, limit):
        tree = yield from real(self, seq, limit)
        unlikely = tree.drawn[int(tree.parents[-1])].of(int(tree.tokens[-1])) < 0.3
        return tree.first(len(tree) - unlikely)

    monkeypatch.setattr(Deer, "propose", cut)
    assert biased("deer(budget=fixed,num_speculative_tokens=3,width=1,verifier=rejection)") > 1e-3
