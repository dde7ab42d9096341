"""Tests Superposed Decoding against a slow reference, which has no cache and never ends early."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searching import MOST, PROMPT, begin, best, request, run, scorer, text_of, value

from paradecode.engine.engine import Engine
from paradecode.llm import LLM
from paradecode.methods.draft.ngram_table import load_ngrams
from paradecode.models.weights import Tensor
from paradecode.search.run import SearchRun
from paradecode.testing.toy import LetterText, ToyBackend
from paradecode_lab.training.ngrams.counting import count_ngrams
from tiny_folder import write_folder

END = 3
TOY = ToyBackend()
LOOPS = (*(4, 5, 6, 7, 8) * 3, 9, 4, 6, *(10, 11, 12) * 4, 1, 2, 3, 0, 4, 5, 6, 2, 3, 9, 4, 5)
WEIGHTS = {1: 0.01, 2: 0.04, 3: 0.15, 4: 0.18, 5: 0.12}


def toy_engine(toy: ToyBackend = TOY) -> Engine:
    embedding = toy.embed(np.arange(toy.config.vocab_size))
    weights = {"embed": Tensor(embedding, embedding.shape)}
    return Engine({"target": ToyBackend(toy.config)}, new_text=LetterText, weights=weights)


def share(text: Sequence[int], run_: Sequence[int], token: int) -> float | None:
    """Return how often ``token`` follows ``run_`` in a text, as a share.

    The result is None if nothing follows it.
    """
    size = len(run_)
    after = [text[at + size] for at in range(len(text) - size) if text[at : at + size] == run_]
    return after.count(token) / len(after) if after else None


def reference(k, kept, alpha, sharpness, prompt, most=MOST, table=None):
    """Return (tokens, mean log-probability) of the k best drafts, the best first."""
    rows = [TOY.embed(np.array(prompt))]
    alive: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []
    for _ in range(most):
        logits = TOY.logits_of(np.concatenate(rows)) / sharpness
        best_tokens = np.argsort(-logits, kind="stable")[:kept].tolist()
        p = np.exp(logits[best_tokens] - logits[best_tokens].max())
        p /= p.sum()
        options = []
        for tokens, total in alive:
            text = [*prompt, *tokens]
            worth = {}
            for token in best_tokens:
                worth[token] = 0.0
                for size, weight in WEIGHTS.items():
                    found = share(list(prompt), text[-size:], token) if size <= len(text) else 0.0
                    if found is None and table is not None:
                        said = table.after(tuple(text[-size:]))
                        found = table.priors[said[1]] if said and said[0] == token else 0.0
                    worth[token] += weight * (found or 0.0)
            nothing = not any(worth.values())
            for token, chance in zip(best_tokens, p):
                log = (1 - alpha) * math.log(chance)
                if alpha and nothing:
                    log -= 200
                elif alpha:
                    log += alpha * math.log(worth[token]) if worth[token] else -math.inf
                options.append(([*tokens, token], total + log))
        options = sorted(options, key=lambda each: -each[1])[: 2 * k]
        options = [each for each in options if each[1] > -math.inf]
        ended += [each for each in options if each[0][-1] == END]
        alive = [each for each in options if each[0][-1] != END][:k]
        if not alive:
            break
        weights = np.exp(np.array([total for _, total in alive]) - alive[0][1])
        weights /= weights.sum()
        assert weights.sum() == pytest.approx(1.0)
        last = TOY.embed(np.array([tokens[-1] for tokens, _ in alive])).astype(np.float64)
        rows.append((weights @ last)[None].astype(np.float32))
    found = sorted(ended + alive, key=lambda each: -each[1] / len(each[0]))[:k]
    return [(tokens, total / len(tokens)) for tokens, total in found]


def same(found: SearchRun, wanted: list[tuple[list[int], float]]) -> None:
    assert found.error is None
    branches = [found.found.best, *found.found.others]
    assert [list(branch.tokens) for branch in branches] == [tokens for tokens, _ in wanted]
    assert found.found.scores == pytest.approx([score for _, score in wanted])


@pytest.mark.parametrize("prompt", [PROMPT, LOOPS])
@pytest.mark.parametrize(("k", "kept"), [(1, 9), (2, 9), (3, 9), (4, 2), (5, 29)])
@pytest.mark.parametrize(("alpha", "sharpness"), [(0.54, 0.06), (0.0, 1.0), (0.3, 2.0), (1.0, 1.0)])
def test_every_step_is_the_papers(k, kept, alpha, sharpness, prompt):
    wanted = reference(k, kept, alpha, sharpness, prompt)
    search = f"superposed(k={k},tokens={kept},alpha={alpha},sharpness={sharpness})"
    same(run(search, on=toy_engine(), stop=(), prompt=prompt), wanted)


def test_the_reference_ends_texts_and_mixes_drafts() -> None:
    found = reference(5, 29, 0.3, 2.0, LOOPS)
    assert {tokens[-1] == END for tokens, _ in found} == {True, False}
    without = reference(5, 29, 0.0, 2.0, LOOPS)
    assert found != without


def test_a_table_helps_where_the_prompt_says_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    table = count_ngrams([random.integers(0, 29, 400).tolist() for _ in range(12)], 29)
    table.save(tmp_path / "own.ngrams")
    wanted = reference(3, 9, 0.5, 0.5, PROMPT, table=load_ngrams(str(tmp_path / "own.ngrams")))
    search = f"superposed(alpha=0.5,sharpness=0.5,table='{tmp_path / 'own.ngrams'}')"
    same(run(search, on=toy_engine(), stop=()), wanted)
    assert wanted != reference(3, 9, 0.5, 0.5, PROMPT)


def test_one_draft_without_ngrams_is_greedy_decoding() -> None:
    plain: list[int] = []
    while len(plain) < MOST and END not in plain:
        plain.append(int(TOY.plain_logits(np.array([*PROMPT, *plain])).argmax()))
    found = run("superposed(k=1,alpha=0)", on=toy_engine(), stop=())
    assert list(best(found).tokens) == plain


def test_a_forward_has_one_row_for_all_drafts() -> None:
    own = toy_engine()
    found = run("superposed(k=4,sharpness=1)", on=own, stop=(), ignore_eos=True)
    (sequence,) = found.sequences
    assert own.forwards == MOST
    assert sequence.rows == len(PROMPT) + MOST - 1
    assert best(found).new == MOST


def test_pages_of_mixtures_are_never_shared() -> None:
    own = toy_engine()
    run("superposed(alpha=0,sharpness=1)", on=own, stop=(), ignore_eos=True)
    again = run("superposed(alpha=0,sharpness=1)", on=own, stop=(), ignore_eos=True)
    (sequence,) = again.sequences
    assert sequence.cached_tokens == len(PROMPT) // 16 * 16
    longer = (*PROMPT, *sequence.output)
    plain = own.add(request(prompt=longer, stop=(), temperature=0.0, max_tokens=4))
    while own.busy:
        own.step()
    assert plain.cached_tokens == len(PROMPT) // 16 * 16
    assert plain.output[0] == int(TOY.plain_logits(np.array(longer)).argmax())


def test_stop_texts_and_scorers() -> None:
    asked: dict[str, Any] = {"stop": ("h", "f"), "prompt": LOOPS}
    found = run("superposed(k=4,sharpness=1,alpha=0.2)", on=toy_engine(), **asked)
    branches = [found.found.best, *found.found.others]
    stopped = [branch for branch in branches if branch.text != text_of(branch.tokens)]
    assert any(branch.reason == "stop" for branch in stopped)
    assert not any("h" in branch.text or "f" in branch.text for branch in branches)
    liked = run("superposed(k=4,sharpness=1,alpha=0.2)", scorer, on=toy_engine(), **asked)
    assert best(liked).text == max((branch.text for branch in branches), key=value)


@pytest.mark.parametrize(("more", "said"), [
    ({"repetition_penalty": 1.2}, "penalties"), ({"min_tokens": 3}, "min_tokens"),
    ({"logprobs": 1}, "logprobs"),
])  # fmt: skip
def test_what_it_cannot_do_is_refused(more: dict[str, Any], said: str) -> None:
    found = begin(toy_engine(), "superposed", None, request(**more))
    assert said in str(found.error)


def test_an_engine_without_weights_says_so() -> None:
    found = run("superposed", stop=())
    assert "embedding" in str(found.error)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_backends_read_mixtures(backend: str, tmp_path: Path) -> None:
    """A row that is given as the embedding of a token has the token's logits.

    A mixture of embeddings gives other drafts.
    """
    folder = write_folder(tmp_path / "model", "llama")
    with LLM(str(folder), decoder=None, backend=backend) as llm:
        ids = llm.encode("abcabcab, and so on")
        plain = llm.complete([ids], max_tokens=12, ignore_eos=True)[0]
        alone = llm.complete(
            [ids], max_tokens=12, ignore_eos=True, search="superposed(k=1,alpha=0)"
        )
        assert alone[0].token_ids == plain.token_ids
        three = llm.complete([ids], max_tokens=12, ignore_eos=True, search="superposed(alpha=0.1)")
        drafts = [three[0], *three[0].alternatives]
        assert len({tuple(draft.token_ids) for draft in drafts}) == 3
        assert llm.engine.pools["target"].held == 0
