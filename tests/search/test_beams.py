"""Tests beam search and diverse beam search against slow references without a cache."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searching import MOST, PROMPT, begin, best, engine, request, run, scorer, text_of, value

from paradecode.engine.engine import Engine, Limits
from paradecode.llm import LLM
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from tiny_folder import write_folder

END = 3
TOY = ToyBackend()
Penalty = Callable[[list[int], list[list[list[int]]], int], float]
"""Maps (output, outputs of earlier groups with this step's token, token) to a penalty."""


@dataclass
class Kept:
    tokens: list[int]
    total: float
    rank: float


def log_probabilities(tokens: Sequence[int], toy: ToyBackend = TOY) -> np.ndarray:
    logits = toy.plain_logits(np.array(tokens))
    return logits - np.logaddexp.reduce(logits)


def score(kept: Kept, of: float, power: float, prompt: Sequence[int]) -> float:
    """Return vLLM's score: the sum over the length of prompt and output, without the end token."""
    return of / (len(prompt) + len(kept.tokens) - (kept.tokens[-1] == END)) ** power


def reference(
    width: int,
    power: float = 1.0,
    groups: int = 1,
    penalty: Penalty = lambda own, before, token: 0.0,
    most: int = MOST,
    toy: ToyBackend = TOY,
    prompt: Sequence[int] = PROMPT,
) -> list[tuple[list[int], float]]:
    """Search over the whole vocabulary, always to the last step.

    Returns (tokens, score), best first.
    """
    open_ = [[Kept([], 0.0, 0.0)] for _ in range(groups)]
    ended: list[list[Kept]] = [[] for _ in range(groups)]
    for _ in range(most):
        made: list[list[list[int]]] = []
        for place in range(groups):
            offered: list[Kept] = []
            for beam in open_[place]:
                logs = log_probabilities([*prompt, *beam.tokens], toy)
                own = [
                    Kept(
                        [*beam.tokens, token], beam.total + log,
                        beam.rank + log - penalty(beam.tokens, made, token),
                    )
                    for token, log in enumerate(logs.tolist())
                ]  # fmt: skip
                # The sort is stable: among equals the likelier token comes first, then the lower
                # id.
                own.sort(key=lambda one: (-one.rank, -logs[one.tokens[-1]], one.tokens[-1]))
                offered += own[: 2 * width]
            offered.sort(key=lambda one: -one.rank)
            ended[place] += [one for one in offered if one.tokens[-1] == END]
            open_[place] = [one for one in offered if one.tokens[-1] != END][:width]
            made.append([one.tokens for one in open_[place]])
    found = []
    for place in range(groups):
        all_ = ended[place] + open_[place]
        all_.sort(key=lambda one: -score(one, one.rank, power, prompt))
        found += all_[:width]
    found.sort(key=lambda one: -score(one, one.total, power, prompt))
    return [(one.tokens, score(one, one.total, power, prompt)) for one in found]


def same(found: SearchRun, wanted: list[tuple[list[int], float]]) -> None:
    assert found.error is None
    branches = [found.found.best, *found.found.others]
    assert [list(branch.tokens) for branch in branches] == [tokens for tokens, _ in wanted]
    assert found.found.scores == pytest.approx([score for _, score in wanted])


ENDING = (*PROMPT, 0)
"""A prompt after which the end token comes soon."""


@pytest.mark.parametrize("prompt", [PROMPT, ENDING])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("power", [1.0, 0.0, -2.0, 6.0])
def test_beam_search(width: int, power: float, prompt: tuple[int, ...]) -> None:
    wanted = reference(width, power, prompt=prompt)
    found = run(f"beam(width={width},length_penalty={power})", stop=(), prompt=prompt)
    same(found, wanted)
    assert completion_of_search(found).token_ids == wanted[0][0]


def test_the_reference_has_texts_that_end_and_that_do_not() -> None:
    found = reference(5, 6.0, prompt=ENDING)
    assert {tokens[-1] == END for tokens, _ in found} == {True, False}
    assert len({len(tokens) for tokens, _ in reference(8, 0.0, prompt=ENDING)}) > 3


def test_one_beam_is_greedy_decoding() -> None:
    tokens, plain = list(PROMPT), []
    while len(plain) < MOST:
        plain.append(int(log_probabilities([*tokens, *plain]).argmax()))
    found = run("beam(width=1)", ignore_eos=True, stop=())
    assert list(best(found).tokens) == plain


def test_wide_enough_it_finds_the_likeliest_of_all_texts() -> None:
    toy = ToyBackend(toy_config(vocab_size=5))
    prompt = (0, 1, 2, 4)
    texts = []
    for length in (1, 2, 3):
        for tokens in itertools.product(range(5), repeat=length):
            if END in tokens[:-1] or (length < 3 and tokens[-1] != END):
                continue
            total = sum(
                log_probabilities([*prompt, *tokens[:place]], toy)[token]
                for place, token in enumerate(tokens)
            )
            texts.append((total, list(tokens)))
    texts.sort(key=lambda each: -each[0])
    own = Engine({"target": toy}, new_text=LetterText)
    asked = request(prompt=prompt, max_tokens=3, stop=())
    found = begin(own, "beam(width=32,length_penalty=0)", None, asked)
    while not found.finished:
        own.step()
        own.check()
        found.advance()
    same(found, [(tokens, total) for total, tokens in texts[:32]])


@pytest.mark.parametrize("more", [
    {"temperature": 0.0}, {"temperature": 2.0, "seed": 5}, {"top_k": 1},
    {"decoder": "prompt-lookup"},
])  # fmt: skip
def test_nothing_is_drawn_and_nothing_drafted(more: dict[str, Any]) -> None:
    same(run("beam(width=3)", stop=(), **more), reference(3))


def test_neighbours_change_nothing() -> None:
    own = engine()
    runs = [begin(own, f"beam(width={width})", None, request(stop=())) for width in (2, 3)]
    beside = own.add(request(stop=()))
    while own.busy:
        own.step()
        own.check()
        for one in runs:
            one.advance()
    same(runs[0], reference(2))
    same(runs[1], reference(3))
    alone = engine()
    plain = alone.add(request(stop=()))
    while alone.busy:
        alone.step()
    assert beside.output == plain.output


def hamming(strength: float) -> Penalty:
    def taken(own: list[int], before: list[list[list[int]]], token: int) -> float:
        return strength * sum(text[-1] == token for group in before for text in group)

    return taken


def cumulative(strength: float, spread: float) -> Penalty:
    def taken(own: list[int], before: list[list[list[int]]], token: int) -> float:
        mine, total = [*own, token], 0.0
        for group in before:
            differ = sum(a != b for text in group for a, b in zip(text, mine, strict=True))
            total += math.exp(-differ / spread) if group else 0.0
        return strength * total

    return taken


def ngram(strength: float, n: int) -> Penalty:
    def taken(own: list[int], before: list[list[list[int]]], token: int) -> float:
        gram = [*own, token][-n:]
        if len(gram) < n:
            return 0.0
        return strength * sum(
            text[at : at + n] == gram
            for group in before for text in group for at in range(len(text) - n + 1)
        )  # fmt: skip

    return taken


@pytest.mark.parametrize(("settings", "penalty"), [
    ("strength=0.5", hamming(0.5)), ("strength=3", hamming(3.0)),
    ("strength=2,diversity=cumulative,spread=4", cumulative(2.0, 4.0)),
    ("strength=0.7,diversity=cumulative", cumulative(0.7, 1.0)),
    ("strength=1,diversity=ngram", ngram(1.0, 2)),
    ("strength=2,diversity=ngram,ngram=1", ngram(2.0, 1)),
    ("strength=4,diversity=ngram,ngram=3", ngram(4.0, 3)),
])  # fmt: skip
@pytest.mark.parametrize(("width", "groups"), [(4, 2), (6, 3), (4, 4)])
@pytest.mark.parametrize("prompt", [PROMPT, ENDING])
def test_diverse_beam_search(settings, penalty, width, groups, prompt):
    wanted = reference(width // groups, 1.0, groups, penalty, prompt=prompt)
    search = f"diverse-beam(width={width},groups={groups},{settings})"
    found = run(search, stop=(), prompt=prompt)
    same(found, wanted)


def test_without_strength_groups_are_equal_and_one_group_is_beam_search() -> None:
    plain = reference(3)
    same(run("diverse-beam(width=3,groups=1,strength=9)", stop=()), plain)
    doubled = [each for each in plain for _ in range(2)]
    same(run("diverse-beam(width=6,groups=2,strength=0)", stop=()), doubled)


def test_with_endless_strength_groups_never_choose_alike() -> None:
    found = run("diverse-beam(width=4,groups=4,strength=1e6)", stop=(), ignore_eos=True)
    outputs = [branch.tokens for branch in (found.found.best, *found.found.others)]
    assert all(len(set(tokens)) == 4 for tokens in zip(*outputs, strict=True))


def test_a_stop_text_ends_a_beam() -> None:
    found = run("beam(width=4,length_penalty=-1)", stop=("a",))
    ended = [b for b in (found.found.best, *found.found.others) if b.reason == "stop"]
    assert ended
    for branch in ended:
        assert branch.text == text_of(branch.tokens[:-1])
        assert "a" not in branch.text


def test_penalties_and_least_lengths_hold() -> None:
    found = run("beam(width=3,length_penalty=-3)", stop=(), min_tokens=9, frequency_penalty=30.0)
    assert found.found is not None
    for branch in (found.found.best, *found.found.others):
        assert branch.new >= 9
        assert len(set(branch.tokens)) == branch.new


def test_a_scorer_chooses_among_the_beams() -> None:
    wanted = reference(4)
    texts = [text_of(tokens[: -1 if tokens[-1] == END else None]) for tokens, _ in wanted]
    found = run("beam(width=4)", scorer, stop=())
    assert best(found).text == max(texts, key=value)


def test_beams_share_pages_and_copy_only_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    own, copied, most = engine(), [], 0
    copy = own.models["target"].copy
    monkeypatch.setattr(
        own.models["target"], "copy", lambda s, t, *w: (copied.append(len(s)), copy(s, t, *w))
    )
    found = begin(own, "beam(width=4)", None, request(stop=(), ignore_eos=True))
    steps = 0
    while not found.finished:
        own.step()
        steps += 1
        own.check()
        found.advance()
        most = max(most, own.pools["target"].held)
    assert steps == MOST  # The prompt's forward gives the first token.
    assert set(copied) == {16}
    # Every beam may diverge in each step, and then copies one page.
    assert len(copied) <= 4 * steps
    full = (len(PROMPT) + MOST) // 16 + 1
    assert most <= 1 + 2 + 4 * (full - 2), "the two full pages of the prompt are shared"
    assert found.found is not None
    completion = completion_of_search(found)
    assert completion.search.tokens == 4 * MOST
    assert completion.search.rows == len(PROMPT) + 4 * (MOST - 1)


def test_a_deadline_returns_the_best_so_far() -> None:
    own = engine()
    found = begin(own, "beam(width=3)", None, request(stop=()))
    for _ in range(5):
        own.step()
        found.advance()
    object.__setattr__(own.running[0].request, "deadline", 0.0)
    own.step()
    own.check()
    assert own.pools["target"].held == 0
    found.advance()
    assert best(found).reason == "deadline"
    assert list(best(found).tokens) == reference(3, most=5)[0][0]


def test_beams_wait_for_their_pages_and_never_run_out() -> None:
    own = Engine({"target": ToyBackend()}, Limits(kv_tokens=16 * 24), LetterText)
    runs = [begin(own, "beam(width=4)", None, request(stop=())) for _ in range(3)]
    while own.busy:
        own.step()
        own.check()
        assert own.unreserved >= 0
        for one in runs:
            one.advance()
    for one in runs:
        same(one, reference(4))


def test_beams_that_can_never_fit_are_refused() -> None:
    own = Engine({"target": ToyBackend()}, Limits(kv_tokens=16 * 40), LetterText)
    found = begin(own, "beam(width=32)", None, request(stop=()))
    assert "kv_tokens" in str(found.error)


def test_a_canvas_model_has_no_beams() -> None:
    own = Engine({"target": ToyBackend(toy_config(attention="full"))}, new_text=LetterText)
    found = begin(own, "beam(width=2)", None, request(stop=()))
    while not found.finished:
        own.step()
        found.advance()
    assert "autoregressive" in str(found.error)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_sums_are_what_the_model_says_of_the_whole_text(backend: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "llama")
    with LLM(str(folder), decoder=None, backend=backend) as llm:
        ids = llm.encode("abcabcab, and so on")
        (found,) = llm.complete([ids], search="beam(width=4,length_penalty=0)", max_tokens=10)
        assert found.search is not None
        outputs = [found, *found.alternatives]
        assert len({tuple(output.token_ids) for output in outputs}) == 4
        for output, total in zip(outputs, found.search.scores, strict=True):
            (said,) = llm.score([ids + output.token_ids])
            alone = sum(entry.logprob for entry in said[-len(output.token_ids) :])
            assert total == pytest.approx(alone, rel=1e-5)
        tree = found.search.tree
        assert [branch.after for branch in tree] == [None, 0, 0, 0, 0]
        assert [branch.chosen for branch in tree] == [True, True, False, False, False]
        kinds = {"type": "choice", "value": ["abc", "cab", "bb"]}
        (found,) = llm.complete([ids], search="beam(width=3)", max_tokens=10, constraint=kinds)
        said_ = {output.text for output in (found, *found.alternatives)}
        assert said_ == {"abc", "cab", "bb"}
        assert llm.engine.pools["target"].held == 0
