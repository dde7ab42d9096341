"""Tests ATTS against a slow reference, and its guarantee by simulation and controls."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searching import MOST, PROMPT, SEED, STOPS, begin, request, run, scorer, text_of, value

from paradecode.core.errors import InvalidInput
from paradecode.core.noise import Purpose, gumbel, key, mix
from paradecode.engine.engine import Engine
from paradecode.llm import LLM
from paradecode.search.run import SearchRun
from paradecode.search.strategies import find_strategy
from paradecode.search.strategies.atts import AsynchronousScaling, ChunkScores, p_value
from paradecode.search.strategies.sampled import final_answer
from paradecode.testing.toy import LetterText, ToyBackend, letter
from paradecode_lab.training.chunk_scores import record_chunk_scores
from tiny_folder import write_folder

TARGET, DRAFT = ToyBackend(), ToyBackend(seed=1)
IDS, END, HOT = np.arange(29), 3, 1.5


def both() -> Engine:
    models = {"target": ToyBackend(), "draft": ToyBackend(seed=1)}
    return Engine(models, new_text=LetterText)


def drawn(model: ToyBackend, tokens: Sequence[int], noise: int) -> int:
    return int(np.argmax(model.plain_logits(np.array(tokens)) / HOT + gumbel(noise, IDS)))


def ends(tokens: Sequence[int]) -> bool:
    return tokens[-1] == END or letter(tokens[-1]) in STOPS or len(tokens) >= MOST


def log_perplexity(before: Sequence[int], chunk: Sequence[int]) -> float:
    total = 0.0
    for place, token in enumerate(chunk):
        logits = TARGET.plain_logits(np.array([*before, *chunk[:place]]))
        total += float(logits[token] - np.logaddexp.reduce(logits))
    return -total / len(chunk)


def chunk_of(seed: int, output: list[int], most: int, attempt: int | None) -> list[int]:
    """Return the draft model's chunk after ``output``, or the target's if ``attempt`` is None."""
    made: list[int] = []
    while len(made) < most and not (made and ends([*output, *made])):
        text = [*PROMPT, *output, *made]
        if attempt is None:
            token = drawn(TARGET, text, key(mix(seed), len(text)))
        else:
            token = drawn(DRAFT, text, key(key(mix(seed), len(text), Purpose.DRAFT), attempt))
        made.append(token)
    return made


def reference(n, chunk, alpha, attempts, calibration, scores=None):
    def seed(number: int) -> int:
        return SEED if number == 0 else key(SEED, number, Purpose.CHILD_SEED)

    if scores is None:
        scores = [
            log_perplexity(PROMPT, chunk_of(seed(n + i), [], chunk, 0)) for i in range(calibration)
        ]
    outputs = []
    for number in range(n):
        output: list[int] = []
        while not output or not ends(output):
            for attempt in range(attempts):
                made = chunk_of(seed(number), output, chunk, attempt)
                score = log_perplexity([*PROMPT, *output], made)
                p = (1 + sum(other >= score for other in scores)) / (1 + len(scores))
                if p > alpha:
                    break
            else:
                made = chunk_of(seed(number), output, chunk, None)
            output += made
        outputs.append(output)
    return outputs


def shown(output: list[int]) -> str:
    cut = output[-1] == END or letter(output[-1]) in STOPS
    return text_of(output[:-1] if cut else output)


@pytest.mark.parametrize(("n", "chunk", "alpha", "attempts", "calibration"), [
    (4, 5, 0.4, 1, 8), (3, 5, 0.4, 3, 8), (3, 1, 0.6, 2, 5), (2, 24, 0.5, 1, 3),
    (3, 4, 0.0, 1, 4), (3, 4, 1.0, 2, 4),
])  # fmt: skip
def test_every_chunk_is_the_papers(n, chunk, alpha, attempts, calibration):
    wanted = reference(n, chunk, alpha, attempts, calibration)
    settings = f"n={n},chunk={chunk},alpha={alpha},attempts={attempts},calibration={calibration}"
    found = run(f"atts({settings})", on=both())
    assert found.error is None
    branches = [found.found.best, *found.found.others]
    in_turn = sorted(branches, key=lambda branch: branch.start.seed)
    assert [list(branch.tokens) for branch in in_turn] == wanted
    answers = [final_answer(shown(output)) for output in wanted]
    votes = Counter(answers)
    first = max(range(n), key=lambda place: (votes[answers[place]], -place))
    assert found.found.best.start.seed == first
    liked = run(f"atts({settings})", scorer, on=both())
    assert liked.found.best.text == max(map(shown, wanted), key=value)


def test_the_reference_rejects_and_accepts() -> None:
    own = reference(4, 5, 0.4, 1, 8)
    assert own != reference(4, 5, 0.0, 1, 8)
    assert own != reference(4, 5, 1.0, 1, 8)


def test_rejecting_all_samples_the_target() -> None:
    found = run("atts(n=3,chunk=4,alpha=1,calibration=2)", on=both())
    plain = run("best-of(n=3)", on=both())
    made = {b.start.seed: b.tokens for b in (found.found.best, *found.found.others)}
    assert made == {b.start.seed: b.tokens for b in (plain.found.best, *plain.found.others)}


def first_chunks(count: int, alpha: float, calibration: int) -> list[bool]:
    """Run many searches, and return for each whether the first chunk was rejected."""
    rejected, own = [], both()
    for seed in range(count):
        strategy = AsynchronousScaling(1, 3, alpha, calibration=calibration)
        found = SearchRun(own, request(seed=seed, max_tokens=3), strategy, text_of)
        while not found.finished:
            own.step()
            found.advance()
        rejected.append(not strategy.samples[0].accepted[0])
    return rejected


@pytest.mark.first(1)
@pytest.mark.parametrize(("alpha", "calibration"), [(0.4, 4), (0.25, 3)])
def test_first_chunks_are_rejected_as_seldom_as_promised(alpha: float, calibration: int) -> None:
    """In 150 searches, first chunks are rejected at most 4 standard errors too often."""
    rejected = np.mean(first_chunks(150, alpha, calibration))
    promised = int(alpha * (calibration + 1)) / (calibration + 1)
    error = 4 * np.sqrt(promised * (1 - promised) / 150)
    assert promised / 4 < rejected <= promised + error


def rates(scores: np.ndarray, calibrated: np.ndarray, alpha: float) -> float:
    pairs = zip(scores.tolist(), np.sort(calibrated, axis=1).tolist(), strict=True)
    return float(np.mean([p_value(score, ascending) <= alpha for score, ascending in pairs]))


@pytest.mark.parametrize("alpha", [0.05, 0.25, 0.4, 0.9])
@pytest.mark.parametrize("m", [4, 10, 19])
def test_the_guarantee_holds_and_breaks_without_what_it_needs(alpha: float, m: int) -> None:
    """The guarantee holds for exchangeable scores, continuous or with ties.

    As a control, it breaks if the calibration scores are shifted.
    """
    random, trials = np.random.default_rng(m), 20000
    error = 5 * np.sqrt(alpha * (1 - alpha) / trials)
    exact = int(alpha * (m + 1) + 1e-9) / (m + 1)
    drawn_ = random.normal(size=(trials, m + 1)) ** 3
    rate = rates(drawn_[:, 0], drawn_[:, 1:], alpha)
    assert rate == pytest.approx(exact, abs=error)
    tied = random.integers(0, 4, (trials, m + 1))
    assert rates(tied[:, 0], tied[:, 1:], alpha) <= alpha + error
    # The control: calibrated on easier texts, the test rejects far more chunks than it promises.
    shifted = rates(drawn_[:, 0] + 3.0, drawn_[:, 1:], alpha)
    assert shifted > min(exact + 10 * error, (1 + exact) / 2) or exact == 0


def test_without_counting_the_score_itself_it_would_reject_too_many() -> None:
    """The plain percentile, mean(calibrated < score), does not keep the promise."""
    random, alpha, m, trials = np.random.default_rng(0), 0.4, 10, 20000
    drawn_ = random.normal(size=(trials, m + 1))
    percentile = (drawn_[:, 1:] < drawn_[:, :1]).mean(axis=1)
    assert np.mean(percentile >= 1 - alpha) > alpha + 0.03
    assert rates(drawn_[:, 0], drawn_[:, 1:], alpha) <= alpha + 0.015


def test_other_questions_calibrate_and_many_chunks_of_few_do_not() -> None:
    """Calibration with one score each of other questions keeps the promise over all questions.

    A question has a difficulty of its own. As a control, as many scores of only two questions break
    the promise.
    """
    random, alpha, m, trials = np.random.default_rng(5), 0.1, 19, 20000
    hard, noise = random.normal(size=(trials, m + 1)), random.normal(size=(trials, m + 1)) / 4
    asked = hard[:, 0] + noise[:, 0]
    kept = rates(asked, hard[:, 1:] + noise[:, 1:], alpha)
    assert kept == pytest.approx(alpha, abs=5 * np.sqrt(alpha * (1 - alpha) / trials))
    of_two = hard[:, 1 + np.arange(m) % 2] + noise[:, 1:]
    assert rates(asked, of_two, alpha) > 2.5 * alpha
    # The promise holds over all questions, and not for each: hard questions are rejected more
    # often.
    assert rates(asked[hard[:, 0] > 1], (hard + noise)[hard[:, 0] > 1, 1:], alpha) > 3 * alpha


def test_scores_of_a_file_take_the_place_of_calibration(tmp_path: Path) -> None:
    """With scores from a file chunks equal the reference's; none is drafted to calibrate."""
    path, scores = str(tmp_path / "own.scores"), [2.5, 2.625, 2.75, 2.875, 3.0, 3.125]
    ChunkScores({"chunk": 5, "count": 6}, {"scores": np.array(scores[::-1], np.float32)}).save(path)
    found = run(f"atts(n=4,chunk=5,scores='{path}')", on=both())
    assert found.found is not None
    assert len(found.sequences) == 4
    wanted = reference(4, 5, 0.4, 1, 0, scores)
    assert [sequence.output for sequence in found.sequences] == wanted
    others = (reference(4, 5, alpha, 1, 8) for alpha in (0.0, 0.4, 1.0))
    assert all(wanted != other for other in others)
    with pytest.raises(InvalidInput, match="chunks of 5 tokens"):
        find_strategy(f"atts(chunk=6,scores='{path}')")
    with pytest.raises(InvalidInput, match="scores"):
        find_strategy("atts(scores='/no/such/file')")


def test_the_command_measures_other_questions(tmp_path: Path) -> None:
    """The command writes the score of a chunk for each question, and the search can use its file.

    The model drafts for itself.
    """
    folder = str(write_folder(tmp_path / "model", "llama"))
    with LLM(folder, draft_model=folder, decoder=None) as llm:
        prompts = [llm.encode(text) for text in ("abcabcab", "so on and", "bcd")]
        made = record_chunk_scores(llm, prompts, 6, 0.9, 3, lambda done, total: None)
        again = record_chunk_scores(llm, prompts, 6, 0.9, 3, lambda done, total: None)
        assert made.tensors["scores"].tolist() == again.tensors["scores"].tolist()
        assert len({*made.tensors["scores"].tolist()}) == 3
        made.save(tmp_path / "scores")
        search = f"atts(n=2,chunk=6,scores='{tmp_path / 'scores'}')"
        (found,) = llm.complete([prompts[0]], search=search, temperature=0.9, seed=1, max_tokens=20)
        assert found.error is None
        assert found.search.branches == 2
        llm.engine.check()
        assert not any(pool.held for pool in llm.engine.pools.values())


def test_p_values() -> None:
    assert p_value(2.0, [1.0, 2.0, 3.0]) == 0.75
    assert p_value(4.0, [1.0, 2.0, 3.0]) == 0.25
    assert p_value(0.0, [1.0, 2.0, 3.0]) == 1.0
    assert p_value(0.0, []) == 1.0


def test_it_needs_a_draft_model_and_no_logprobs() -> None:
    found = run("atts(n=2)")
    assert isinstance(found.error, InvalidInput)  # The server answers it with status 400.
    assert found.error.field == "draft_model"
    assert "logprobs" in str(begin(both(), "atts(n=2)", None, request(logprobs=1)).error)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_backends_with_a_draft_model(backend: str, tmp_path: Path) -> None:
    """If the same model drafts, rejecting all chunks gives the target's samples; no page leaks."""
    folder = str(write_folder(tmp_path / "model", "llama"))
    with LLM(folder, draft_model=folder, decoder=None, backend=backend) as llm:
        asked: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 24}
        ids = [llm.encode("abcabcab, and so on")]
        (found,) = llm.complete(ids, search="atts(n=3,chunk=6,calibration=4)", **asked)
        assert found.error is None
        assert found.search is not None
        assert len(found.alternatives) == 2
        (anew,) = llm.complete(ids, search="atts(n=3,chunk=6,calibration=2,alpha=1)", **asked)
        (plain,) = llm.complete(ids, search="best-of(n=3)", **asked)
        outputs = [
            sorted(one.token_ids for one in (whole, *whole.alternatives)) for whole in (anew, plain)
        ]
        assert outputs[0] == outputs[1]
        llm.engine.check()
        assert not any(pool.held for pool in llm.engine.pools.values())
