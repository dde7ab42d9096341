"""Tests of budgets of growing trees: what is grown, what is cut, and when growth stops."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import grown, verdict

from drafting import Request
from paradecode.core.tree import EMPTY, ROOT, Drawn, Mode, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.budgets.account import HOPE, LOSS, DraftAccount
from paradecode.methods.draft.budgets.auto import OTHERS, AutoBudget
from paradecode.methods.draft.budgets.estimated import Confidence, Hardware
from paradecode.methods.draft.budgets.specdec import (
    AcceptanceHead,
    AcceptanceLog,
    SpecDecPP,
    features,
)
from paradecode.methods.draft.loop import Budget, Needs
from tiers import examples


def chances(seed: int, width: int = 3):
    """Return descending probabilities of the children of every path, with a sum below one."""

    def of(path: list[int]) -> np.ndarray:
        drawn = np.random.default_rng([seed, *path, len(path)]).dirichlet(np.ones(width + 1))
        return np.sort(drawn[:width])[::-1]

    return of


def best_sum(estimates, count: int, deepest: int) -> float:
    """Return the sum of the ``count`` largest reaches of all nodes, found without growing."""
    reach = []
    for depth in range(1, deepest + 1):
        for path in itertools.product(range(3), repeat=depth):
            steps = [estimates(list(path[:level]))[path[level]] for level in range(depth)]
            reach.append(float(np.prod(steps)))
    return sum(sorted(reach, reverse=True)[:count])


@examples(20)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_growing_by_the_fixed_rule_gives_the_best_tree(seed, count):
    tree, _ = grown(Budget(count), Request(), chances(seed))
    assert len(tree) == count
    assert float(tree.reach.sum()) == pytest.approx(best_sum(chances(seed), count, count), rel=1e-4)


def test_confidence_ends_with_the_first_token_in_doubt():
    surely = iter([0.9, 0.8, 0.3, 0.9, 0.9])
    tree, forwards = grown(Confidence(8, 0.4), Request(), lambda path: np.array([next(surely)]))
    assert (len(tree), forwards) == (3, 3)
    chain = TokenTree.chain(range(5), [0.9, 0.3, 0.9, 0.9, 0.9])
    assert len(Confidence(8, 0.4).cut(Request(), chain)) == 2


@pytest.mark.parametrize(("threshold", "length"), [(0.0, 1), (0.3, 4), (1.0, 8)])
def test_specdec_stops_when_a_rejection_is_likely(threshold, length):
    """A draft ends with the first token at which 1 - 0.9^n exceeds 0.3, which is the fourth."""
    tree, _ = grown(SpecDecPP(8, threshold), Request(), lambda path: np.array([0.9]))
    assert len(tree) == length


def test_the_acceptance_head_learns_what_verifications_say():
    log = AcceptanceLog()
    tree = TokenTree.chain([1, 2, 3, 4], [0.5] * 4)
    for turn in range(200):
        log.add(tree, list(range(4 if turn % 10 else 0)))  # Nine times in ten all is accepted.
    log.head.fit(log.inputs, log.accepted)
    assert log.head.predict(tree)[0] == pytest.approx(0.9, abs=0.05)
    assert log.head.predict(tree)[3] > 0.9


def test_an_untrained_head_repeats_the_estimates():
    tree = TokenTree(np.arange(3), np.array([-1, -1, 0]), np.array([0.7, 0.2, 0.9]))
    assert AcceptanceHead().predict(tree) == pytest.approx([0.7, 0.2, 0.9], rel=1e-5)
    assert features(tree)[:, 1].tolist() == [0, 1, 0]


def test_rejections_can_weigh_more():
    log = AcceptanceLog()
    tree = TokenTree.chain([1], [0.5])
    for turn in range(100):
        log.add(tree, [0] if turn % 2 else [])
    even, careful = AcceptanceHead(), AcceptanceHead()
    even.fit(log.inputs, log.accepted)
    careful.fit(log.inputs, log.accepted, rejection_weight=6.0)
    assert careful.predict(tree)[0] < 0.3 < even.predict(tree)[0]


def test_hardware_takes_the_size_that_pays_on_average():
    seq = Request(curve=lambda rows: 1.0 if rows <= 5 else 10.0)
    budget = Hardware(8)
    assert budget.limit(seq) == 4
    tree = TokenTree.chain(range(8), [0.9] * 8)
    for _ in range(200):
        budget.observe(tree, verdict(tree, ROOT))
    seq.curve = lambda rows: 1.0 + 0.1 * rows
    assert budget.limit(seq) == 1
    for _ in range(200):
        budget.observe(tree, verdict(tree, 7))
    assert budget.limit(seq) == 8


def test_auto_spends_a_draft_forward_only_when_it_promises_more_than_it_costs():
    seq = Request(curve=lambda rows: 1.0 + 0.05 * rows)
    lengths = [
        len(grown(AutoBudget(8), seq, lambda path: np.array([0.8]), price)[0])
        for price in (0.0, 0.2, 0.5, 3.0)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8
    assert lengths[-1] <= 1


def test_what_a_draft_took_makes_more_of_it_worth_verifying():
    """The chosen number of nodes gives the most tokens a second, with the draft's time included."""
    curve = [np.inf, 1.0, 1.2, 1.45, 1.75, 2.1]
    seq, budget = Request(curve=lambda rows: curve[rows]), AutoBudget(4)
    tree, root = TokenTree.chain(range(4), [0.7, 0.8, 0.8, 0.7]), np.array([ROOT], np.int32)
    budget.limit(seq)
    assert len(budget.expand(seq, EMPTY, root, lambda rows: 0.3)) == 1
    best = max(range(5), key=lambda n: (1 + tree.reach[:n].sum()) / (0.3 + curve[1 + n]))
    unpaid = max(range(5), key=lambda n: (1 + tree.reach[:n].sum()) / curve[1 + n])
    assert len(budget.cut(seq, tree)) == best > unpaid


def test_a_level_of_a_head_pays_for_the_row_of_its_node():
    """A node is expanded only if its reach earns the time of a level and of a row.

    The time is valued at the recent rate of tokens per second.
    """
    free, dear = Request(curve=lambda rows: 1.0), Request(curve=lambda rows: 1.0 + 0.1 * (rows - 1))
    budget = AutoBudget(8)
    assert budget.least(free, 0.05) == pytest.approx(0.05 / HOPE)
    least = budget.least(dear, 0.05)
    assert least == pytest.approx(0.15 / HOPE)
    # What drafts usually gain is what the time of a level would bring elsewhere.
    budget.learned.usual = 0.7
    assert budget.least(dear, 0.05) == pytest.approx(1.5 * least)
    dear.neighbours = 2
    assert budget.least(dear, 0.05) == pytest.approx(1.5 * (1 + 2 * OTHERS) * least)
    assert budget.least(Request(), 0.05) == Budget(8).least(Request(), 0.05) == 0.0


def test_auto_rests_from_a_hopeless_drafter_and_comes_back_when_it_is_good():
    """A bad drafter costs little more than plain decoding's time, and is used again once good.

    A draft token costs half a forward.
    """
    seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows), AutoBudget(6)
    plain = seq.curve(1)

    def steps(count: int, good: bool) -> tuple[float, int, int]:
        seconds, tokens, drafts = 0.0, 0, 0
        for _ in range(count):
            tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), 0.3)
            drafts += forwards > 0
            accepted = len(tree) - 1 if good else ROOT
            seconds += seq.curve(1 + len(tree)) + 0.3 * forwards
            budget.observe(tree, verdict(tree, accepted))
            tokens += 1 + (len(tree) if good else 0)
        return seconds / (tokens * plain), tokens, drafts

    steps(50, good=False)
    loss, _, drafts = steps(400, good=False)
    assert drafts <= 4
    assert loss < 1.05
    steps(300, good=True)  # It has to be found out first.
    gain, _, drafts = steps(100, good=True)
    assert drafts == 100
    assert gain < 0.6


@pytest.mark.parametrize("price", [0.02, 0.3, 2.0, 20.0])
def test_what_a_hopeless_drafter_costs_is_bounded(price: float):
    """A bad drafter costs at most 1/32 of plain decoding's time, and a constant.

    The constant is the initial trust and one trial.
    """
    seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows), AutoBudget(6)
    plain, lost, dearest = seq.curve(1), 0.0, 0.0
    for step in range(1, 3001):
        tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), price)
        more = seq.curve(1 + len(tree)) + price * forwards - plain
        budget.observe(tree, verdict(tree, ROOT))
        lost, dearest = lost + more, max(dearest, more)
        assert lost <= LOSS * step * plain + 3 * plain + dearest, step


@pytest.mark.first(3)
@pytest.mark.parametrize("price", [0.02, 0.3])
@pytest.mark.parametrize("bad", [30, 500, 2000])
def test_a_text_that_begins_to_pay_is_noticed(price: float, bad: int):
    seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows), AutoBudget(6)

    def steps(count: int, good: bool) -> int:
        """Return how many steps drafted."""
        drafts = 0
        for _ in range(count):
            tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), price)
            drafts += forwards > 0
            budget.observe(tree, verdict(tree, len(tree) - 1 if good else ROOT))
        return drafts

    steps(bad, good=False)
    assert steps(16 * budget.patience + 1, good=True) > 0
    steps(2 * 16 * budget.patience, good=True)
    assert steps(50, good=True) == 50


def test_a_first_forward_is_judged_by_earlier_first_tokens():
    """A drafter is not asked if no draft gains time even with half of its first tokens right."""
    stores: dict[str, object] = {}

    def drafts(price: float, good: int, steps: int = 200) -> int:
        seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows, stores=stores), AutoBudget(1)
        budget.begin("some", Needs(levels=True))
        count = 0
        for _ in range(steps):
            tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), price)
            count += forwards > 0
            right = len(tree) > 0 and count % 2 < good
            budget.observe(tree, verdict(tree, 0 if right else ROOT))
        return count

    assert drafts(0.9, 2) == 1  # 1.7 tokens for 2.0 at best; after 16 refusals it is tried.
    assert drafts(0.3, 1) == 200
    assert drafts(0.6, 1) < 20
    assert drafts(0.6, 2) > 100  # It is tried again, and found to be good.
    assert drafts(0.6, 2) == 200


@pytest.mark.parametrize(("price", "forgiven"), [(0.2, 2), (0.4, 0), (0.7, 0)])
def test_a_drafter_that_usually_gains_may_miss_more_often(price: float, forgiven: int):
    """A drafter with a large usual gain may miss more often before it rests.

    After a rest, half of the first tokens were right, then none are. The gain of two drafts (0.6,
    0.2 or nothing) makes up for that many misses.
    """
    account, misses = DraftAccount(patience=16), 0

    def judge(accepted: int) -> bool:
        account.plain, account.price = 1.0, price
        return account.judge(accepted) > 0

    for step in range(300):
        judge(step % 2)
    account.gained = account.paid = 0.0
    while not judge(0):
        misses += 1
    assert misses == forgiven


def test_a_model_that_failed_is_tried_later_in_the_next_request():
    """A model that failed is tried once, after ``patience`` steps of the next request."""
    stores: dict[str, object] = {}
    tried = []
    for _ in range(3):
        seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows, stores=stores), AutoBudget(6)
        budget.begin("some", Needs(levels=True))
        tried.append([])
        for step in range(40):
            tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), 0.3)
            tried[-1] += [step] * (forwards > 0)
            budget.observe(tree, verdict(tree, ROOT))
    assert tried[0][0] == 0
    assert tried[1] == tried[2] == [budget.patience]


def test_prompts_that_drafts_have_paid_for_cost_no_rest():
    """The time to read a prompt counts against a drafter until its drafts have saved as much."""
    stores: dict[str, object] = {}
    for _ in range(4):
        seq, budget = Request(curve=lambda rows: 1.0 + 0.05 * rows, stores=stores), AutoBudget(6)
        budget.begin("some", Needs(levels=True))
        for step in range(20):
            tree, forwards = grown(budget, seq, lambda path: np.array([0.9]), 0.3)
            assert forwards, step
            if step == 0:
                budget.charge(12.0, sunk=True)
            budget.observe(tree, verdict(tree, len(tree) - 1))


def test_calibration_corrects_both_ways_and_forgets():
    calibration, reach = Calibration(), np.array([0.5])
    assert calibration.of(reach) == pytest.approx([0.5])
    for _ in range(200):
        calibration.update(reach, [0])
    assert calibration.of(reach)[0] > 0.85
    for _ in range(200):
        calibration.update(reach, [])
    assert calibration.of(reach)[0] < 0.15
    later = np.array([True])
    before = calibration.of(reach, later)[0]
    for _ in range(50):
        calibration.update(reach, [0], later)
    assert calibration.of(reach, later)[0] > before
    other = Calibration()
    assert other.of(reach, later) != calibration.of(reach, later)
    other.write(calibration.read())
    assert other.of(reach, later) == calibration.of(reach, later)


def test_sampled_trees_are_cut_in_drawing_order():
    drawn = {ROOT: Drawn(Mode.SWOR, np.arange(4), np.full(4, 0.25))}
    tree = TokenTree(np.array([3, 1, 2]), np.array([-1] * 3), np.array([0.1, 0.2, 0.9]), drawn)
    for budget in (Budget(2), AutoBudget(2), Confidence(2), SpecDecPP(2), Hardware(2)):
        budget.limit(Request())
        kept = budget.cut(Request(), tree)
        assert kept.tokens.tolist() == [3, 1]
        assert kept.sampled
