"""Tests every strategy against a slow reference that decodes one branch at a time."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from searching import (
    LOOP,
    MOST,
    PROMPT,
    SEED,
    STOPS,
    alone,
    begin,
    best,
    engine,
    request,
    run,
    scorer,
    text_of,
    value,
)

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.noise import Purpose, key
from paradecode.engine.engine import Engine
from paradecode.models.weights import Tensor
from paradecode.search.completion import completion_of_search
from paradecode.search.strategies import find_strategy, strategies
from paradecode.search.strategies.sampled import final_answer
from paradecode.testing.toy import LetterText, ToyBackend, letter


@pytest.mark.parametrize("decoder", ["greedy", "prompt-lookup(budget=fixed)"])
def test_best_of_n(decoder: str) -> None:
    branches = [alone(seed) for seed in range(5)]
    likely = max(range(5), key=lambda place: branches[place][2])
    assert list(best(run("best-of(n=5)", None, decoder)).tokens) == branches[likely][0]
    texts = [text_of(tokens[:-1] if why == "stop" else tokens) for tokens, why, _ in branches]
    liked = max(range(5), key=lambda place: value(texts[place]))
    found = run("best-of(n=5)", scorer, decoder)
    assert list(best(found).tokens) == branches[liked][0]
    assert best(found).text == texts[liked]
    assert sorted(found.found.scores) == sorted(map(value, texts))
    assert found.found.scores == tuple(sorted(found.found.scores, reverse=True))


@pytest.mark.parametrize("decoder", ["greedy", "prompt-lookup(budget=fixed)"])
def test_first_finish_returns_the_shortest(decoder: str) -> None:
    branches = [alone(seed) for seed in range(6)]
    ended = [place for place in range(6) if branches[place][1] == "stop"]
    assert 2 <= len(ended) < 6, "the reference must have both kinds"
    order = sorted(ended, key=lambda place: (len(branches[place][0]), place))
    assert list(best(run("ffs(n=6)", None, decoder)).tokens) == branches[order[0]][0]
    last = run("ffs(n=6,keep=2,pick=last)", None, decoder)
    assert list(best(last).tokens) == branches[order[1]][0]
    if decoder == "greedy":
        for by in ("steps", "tokens"):
            found = run(f"ffs(n=6,by={by})")
            assert list(best(found).tokens) == branches[order[0]][0]
            shortest = len(branches[order[0]][0])
            made = [len(sequence.output) for sequence in found.sequences]
            # The first branch reads the prompt, and the others begin a step later; all are
            # cancelled.
            assert max(made) <= shortest + 1


def test_first_finish_where_nobody_ends() -> None:
    own = engine()
    found = begin(own, "ffs(n=3)", None, request(stop=()))
    while not found.finished:
        own.step()
        found.advance()
    assert best(found).start.seed == 0
    assert best(found).new == MOST


def reference_a_star(k: int, step: int, cost: str, weight: float, budget: int) -> list[int]:
    """Search as the paper describes it.

    The node with the least f = g + 1 - r is popped; the first complete answer that is popped wins.
    """
    heap: list[tuple[float, int, int, list[int], bool, float, float]] = [
        (0.0, 0, 0, [], False, 0.0, 0.0)
    ]
    seed = made = 0
    number = 1
    whole: list[tuple[float, int, list[int]]] = []
    while heap and made < budget:
        _, depth, _, tokens, done, paid, rated = heapq.heappop(heap)
        if done:
            return tokens
        for _ in range(k):
            output, why, _ = alone(seed, tokens, min(step, MOST - len(tokens)))
            seed += 1
            made += len(output)
            child = tokens + output
            text = text_of(child[:-1] if why == "stop" else child)
            score = value(text)
            g = paid + {"none": 0.0, "step": weight, "loss": max(0.0, rated - score)}[cost]
            end = why == "stop" or len(child) >= MOST
            heapq.heappush(heap, (g + 1 - score, depth - 1, number, child, end, g, score))
            if end:
                whole.append((-score, number, child))
            number += 1
    if whole:
        return min(whole)[2]
    tokens = heap[0][3]
    drawn = alone(seed, tokens, MOST - len(tokens))[0]
    return tokens + drawn


@pytest.mark.parametrize("cost", ["none", "step", "loss"])
@pytest.mark.parametrize("budget", [100000, 60, 10])
def test_a_star(cost: str, budget: int) -> None:
    wanted = reference_a_star(3, 6, cost, 0.2, budget)
    found = run(f"a-star(k=3,step_tokens=6,cost={cost},weight=0.2,budget={budget})", scorer)
    assert list(best(found).tokens) == wanted
    assert best(found).at_end
    completion = completion_of_search(found)
    assert completion.token_ids == list(best(found).tokens)
    assert [t for step in completion.trace for t in step.tokens] == completion.token_ids
    assert completion.prompt_token_ids == list(PROMPT)
    stats, numbers = completion.stats, [step.forward for step in completion.trace]
    assert numbers == sorted(set(numbers))
    assert (stats.generated, stats.prompt_tokens) == (len(completion.token_ids), len(PROMPT))
    assert stats.forwards == numbers[-1]
    assert completion.search.branches == len(found.sequences)


def test_a_star_with_an_exact_score_expands_only_the_best_path() -> None:
    """With a scorer that knows the best path, a-star expands one node for each step of it."""
    way: list[int] = []
    for _ in range(4):
        way += alone(1 + 3 * (len(way) // 6), way, 6)[0]
    if any(letter(token) in STOPS for token in way):
        pytest.skip("this way ends early")

    def knows(prompt: str, texts: Sequence[str]) -> list[float]:
        return [1.0 if text_of(way).startswith(text) else 0.0 for text in texts]

    found = run("a-star(k=3,step_tokens=6)", knows)
    assert list(best(found).tokens) == way
    assert len(found.sequences) == 3 * 4


def test_majority() -> None:
    branches = [alone(seed) for seed in range(7)]
    texts = [text_of(tokens[:-1] if why == "stop" else tokens) for tokens, why, _ in branches]

    def coarse(text: str) -> str:
        return final_answer(text)

    votes = [sum(coarse(text) == coarse(other) for other in texts) for text in texts]
    winner = votes.index(max(votes))
    assert list(best(run("majority(n=7)")).tokens) == branches[winner][0]
    weights = {t: sum(math.exp(value(o)) for o in texts if coarse(o) == coarse(t)) for t in texts}
    top = max(range(7), key=lambda place: (weights[texts[place]], value(texts[place])))
    assert list(best(run("majority(n=7,votes=weighted)", scorer)).tokens) == branches[top][0]


@pytest.mark.parametrize(("text", "answer"), [
    ("so 3 + 4 = 7.", "7"), ("... #### 1,200", "1200"), ("\\boxed{12.50} of 3", "12.5"),
    ("The answer is: Paris.", "paris"), ("first\nYes, it is", "yes, it is"), ("", ""),
    ("the answer is 4, not 5", "4"), ("it costs 100", "100"), ("it is -3.0", "-3"),
])  # fmt: skip
def test_final_answers(text: str, answer: str) -> None:
    assert final_answer(text) == answer


LONG = 1_000_000
"""Number of characters. A search that takes quadratic time would not end."""


@pytest.mark.first(2)
@pytest.mark.parametrize("text", [
    "answer" + "\n" * LONG, "answer is" + " " * LONG, "####" + "\n" * LONG, "\\boxed{" * LONG,
    "0." + "0" * LONG + "1",
], ids=["answer", "is", "marks", "boxes", "zeros"])  # fmt: skip
def test_an_answer_is_found_in_linear_time(text: str) -> None:
    final_answer(text)


def test_branches_share_the_pages_of_their_prompt() -> None:
    found = run("best-of(n=6)", scorer)
    first, *others = found.sequences
    assert first.cached_tokens == 0
    assert all(sequence.cached_tokens == len(PROMPT) // 16 * 16 for sequence in others)


@pytest.mark.parametrize(("score", "said"), [
    (lambda prompt, texts: [math.nan] * len(texts), "finite"),
    (lambda prompt, texts: [1.0], "3 scores"),
    (lambda prompt, texts: ["good"] * len(texts), "finite number"),
    (lambda prompt, texts: 1 / 0, "division"),
])  # fmt: skip
def test_a_scorer_that_fails_ends_its_search_only(score: Callable[..., Any], said: str) -> None:
    own = engine()
    beside = own.add(request(prompt=LOOP, stop=()))
    found = begin(own, "best-of(n=3)", score)
    while own.busy:
        own.step()
        found.advance()
        own.check()
    assert said in str(found.error)
    again = engine()
    plain = again.add(request(prompt=LOOP, stop=()))
    while again.busy:
        again.step()
    assert beside.output == plain.output
    completion = completion_of_search(found)
    assert completion.finish_reason == "error"
    assert completion.error is found.error


@pytest.mark.parametrize("text", [
    "nothing", "best-of(n=0)", "ffs(n=2,keep=3)", 3, "best-of(m=1)",
    "diverse-beam(width=4,groups=3)",
])  # fmt: skip
def test_strategies_that_do_not_exist(text: Any) -> None:
    with pytest.raises(InvalidInput):
        find_strategy(text)


def test_a_star_wants_shares() -> None:
    found = run("a-star", lambda prompt, texts: [2.0] * len(texts))
    assert "0 to 1" in str(found.error)


ALL = [
    "best-of(n=3)", "majority(n=3)", "ffs(n=3)", "a-star(k=3,step_tokens=4,budget=60)",
    "beam(width=3)", "diverse-beam(width=4,groups=2)", "superposed(k=3)",
    "atts(n=3,chunk=4,calibration=3)",
]  # fmt: skip


def everything(toy: ToyBackend | None = None) -> Engine:
    """Return an engine for every strategy, with a draft model and the embedding's weights."""
    toy = toy or ToyBackend()
    embedding = toy.embed(np.arange(toy.config.vocab_size))
    weights = {"embed": Tensor(embedding, embedding.shape)}
    models = {"target": toy, "draft": ToyBackend(seed=1)}
    return Engine(models, new_text=LetterText, weights=weights)


def test_every_strategy_is_tested_here() -> None:
    assert {text.partition("(")[0] for text in ALL} == set(strategies())


@pytest.mark.parametrize("search", ALL)
def test_a_deadline_ends_every_search(search: str) -> None:
    for deadline in (0.0, 0.01):
        own = everything()
        asked = replace(request(stop=(), ignore_eos=True), deadline=deadline)
        found = begin(own, search, None, asked)
        for _ in range(400):
            own.step()
            own.check()
            found.advance()
            if found.finished:
                break
        assert found.finished
        assert found.error is None
        assert not own.busy
        assert not any(pool.held for pool in own.pools.values())
        assert best(found).reason in ("deadline", "length")
        assert deadline or best(found).new == 0
        assert completion_of_search(found).token_ids == list(best(found).tokens)


@pytest.mark.parametrize("search", [text for text in ALL if "a-star" not in text])
@pytest.mark.parametrize("budget", [3, 10, 31])
def test_a_budget_bounds_all_outputs_together(search: str, budget: int) -> None:
    found = run(search, on=everything(), tokens=budget, stop=(), ignore_eos=True)
    if "width=4" in search and budget == 3:
        assert "has used its 3 tokens" in str(found.error)
        return
    assert found.error is None
    outputs = [found.found.best, *found.found.others]
    assert sum(branch.new for branch in outputs) <= budget
    assert best(found).new == budget // (4 if "width=4" in search else 3)


@pytest.mark.parametrize("tokens", [2, 3, 4, 12, 13, 40])
@pytest.mark.parametrize("score", [None, scorer])
def test_a_star_returns_its_best_node_where_tokens_end(tokens, score):
    found = run("a-star(k=3,step_tokens=4)", score, tokens=tokens, stop=(), ignore_eos=True)
    assert found.error is None
    assert best(found).new > 0
    made = sum(found.made)
    assert made <= tokens
    assert tokens - made < 3 or best(found).at_end


@pytest.mark.parametrize("search", ALL)
def test_no_more_branches_than_the_engine_allows(search: str) -> None:
    found = begin(everything(), search, branches=2)
    assert isinstance(found.error, InvalidInput)
    assert found.error.field == "branches"


@pytest.mark.parametrize("search", ALL)
def test_an_ended_search_has_given_all_its_pages_back(search: str) -> None:
    own, most = everything(), 0
    for steps in (1, 3, 7):
        found = begin(own, search, None, request(stop=(), ignore_eos=True))
        for _ in range(steps):
            own.step()
            found.advance()
            own.check()
        most = max(most, sum(pool.held for pool in own.pools.values()))
        found.close()
        own.check()
        assert not any(pool.held for pool in own.pools.values())
        assert own.unreserved == own.pools["target"].count
        found.advance()
        assert "cancelled" in str(completion_of_search(found).error)
    assert most >= 3


class BadToy(ToyBackend):
    """A model that gives NaN in one place of each row after a certain number of tokens."""

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        results = super().forward(spans)
        for span, result in zip(spans, results):
            if span.positions[-1] > len(PROMPT) + 3:
                assert isinstance(result.logits, ArrayLogits)
                result.logits.values[-1:, 5] = math.nan
        return results


@pytest.mark.parametrize("search", ALL)
def test_logits_that_are_no_numbers_end_a_search_with_an_error_and_nothing_else(search):
    own = everything(BadToy())
    found = begin(own, search, None, request(stop=(), ignore_eos=True))
    beside = own.add(request(prompt=LOOP, stop=(), max_tokens=12))
    while own.busy:
        own.step()
        own.check()
        found.advance()
    assert isinstance(found.error, BackendError), found.error
    assert "NaN" in str(found.error)
    assert beside.error is None
    assert len(beside.output) == 12
    assert not any(pool.held for pool in own.pools.values())


def test_finishers_vote() -> None:
    branches = [alone(seed) for seed in range(12)]
    ended = [place for place in range(12) if branches[place][1] == "stop"]
    order = sorted(ended, key=lambda place: (len(branches[place][0]), place))[:4]
    answers = [final_answer(text_of(branches[place][0][:-1])) for place in order]
    winner = max(range(4), key=lambda at: (answers.count(answers[at]), -at))
    assert winner > 0, "the first to finish must not be the answer of most"
    found = run("ffs(n=12,keep=4,pick=vote)")
    assert list(best(found).tokens) == branches[order[winner]][0]
    with pytest.raises(InvalidInput):
        find_strategy("ffs(pick=middle)")


@pytest.mark.parametrize("decoder", ["stand(budget=fixed)", "suffix(budget=fixed)"])
def test_siblings_learn_from_one_another_and_stay_as_they_are(decoder: str) -> None:
    """A branch drafts what its siblings have written, and the outputs stay the same.

    Samples at a low temperature are alike, so such drafts are often right.
    """
    kinds = {"temperature": 0.3, "max_tokens": 60, "stop": (), "ignore_eos": True}
    found = run("best-of(n=4)", scorer, decoder, **kinds)
    plain = run("best-of(n=4)", scorer, "greedy", **kinds)
    outputs = [sequence.output for sequence in found.sequences]
    assert outputs == [sequence.output for sequence in plain.sequences]
    apart = 0
    for seed in range(4):
        own = engine()
        drawn = SEED if seed == 0 else key(SEED, seed, Purpose.CHILD_SEED)
        by_itself = own.add(request(decoder, **kinds | {"seed": drawn}))
        while own.busy:
            own.step()
        apart += by_itself.forwards
    assert sum(sequence.forwards for sequence in found.sequences) < apart
