"""Tests each scorer against another computation of what its description says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.engine.engine import Limits
from paradecode.engine.prompt import PromptReader
from paradecode.llm import LLM
from paradecode.methods import parts
from paradecode.search.scorers.reward_model import RewardHead
from paradecode.search.scorers.scorer import find_scorer, scorers
from paradecode.search.strategies import find_strategy
from paradecode_lab.measure.tasks.tasks import BY_NAME
from tiny_folder import write_folder

PROMPT, SAMPLED = "abcabcab", {"temperature": 1.5, "seed": 3, "max_tokens": 12, "ignore_eos": True}
WIDTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, decoder=None, limits=Limits(kv_tokens=8192)) as made:
        yield made


def found(llm: LLM, **settings: Any) -> Any:
    return llm.complete(PROMPT, search="best-of(n=5)", **{**SAMPLED, **settings})


def scored(llm: LLM, **settings: Any) -> dict[str, float]:
    """Return the text of each branch -> its score."""
    completion = found(llm, **settings)
    texts = [completion.text, *(other.text for other in completion.alternatives)]
    return dict(zip(texts, completion.search.scores, strict=True))


def last_state(llm: LLM, ids: list[int]) -> np.ndarray[Any, Any]:
    """Return float64 [hidden size]: the state of the last token after the final norm.

    It is computed from the mean states of a prompt and of the prompt without its last token.
    """
    requests = [llm.reading(part, hidden=True) for part in (ids[:-1], ids)]
    llm._read(requests)
    short, long = (request.decoder for request in requests)
    assert isinstance(short, PromptReader)
    assert isinstance(long, PromptReader)
    return long.mean.astype(np.float64) * len(ids) - short.mean * float(len(ids) - 1)


def test_likelihoods(llm: LLM) -> None:
    plain = found(llm, logprobs=0)
    for one in (plain, *plain.alternatives):
        values = [entry.logprob for entry in one.logprobs]
        assert scored(llm)[one.text] == pytest.approx(sum(values) / len(values))
        assert scored(llm, scorer="likelihood(norm=sum)")[one.text] == pytest.approx(sum(values))


def test_an_answer() -> None:
    scorer = find_scorer("answer(right='42')")
    assert "answer" in scorers()
    said = {"so it is 42.0": 1.0, "The answer is 41.": 0.0, "42, no: 43": 0.0, "": 0.0}
    branches: Any = [type("B", (), {"text": text})() for text in said]
    rated: Any = type("R", (), {"branches": branches})()
    assert list(scorer.rate(rated)) == list(said.values())


def test_a_task_checks_its_answers() -> None:
    task = BY_NAME["addition"]
    instance = task.held_out(1)[0]
    given = task.scorer(instance)
    assert given("", [instance.answer, f" {instance.answer}\n", instance.answer + "1"]) == [1, 1, 0]


def test_a_constraint(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    wanted = re.escape(next(iter(scored(llm)))[:2]) + r"[\s\S]*"
    values = scored(llm, scorer={"type": "regex", "value": wanted})
    fits = {text: re.fullmatch(wanted, text) is not None for text in values}
    assert {True, False} == set(fits.values()), "both kinds must occur"
    for text, value in values.items():
        assert (value == 1.0) == fits[text]
        assert fits[text] or 0.0 <= value <= 0.5


def head(tmp_path: Path, width: int = WIDTH) -> Path:
    """Write a logistic layer with random weights, and return its path."""
    random = np.random.default_rng(5)
    tensors = {
        "mean": 0.1 * random.standard_normal(width), "scale": np.ones(width),
        "bias": np.zeros(width), "weight": np.zeros((width, width)),
        "out": random.standard_normal(width + 1) / 4,
    }  # fmt: skip
    facts = {"reads": "states", "width": width, "blocks": 0}
    RewardHead(facts, {n: v.astype(np.float32) for n, v in tensors.items()}).save(tmp_path / "h")
    return tmp_path / "h"


def spoken(llm: LLM, output: Any) -> list[int]:
    """Return the tokens of an output without its end token."""
    ends = output.token_ids[-1] in llm.config.eos_tokens
    return output.token_ids[: len(output.token_ids) - ends]


@pytest.mark.parametrize("cached", [True, False])
def test_a_process_reward(folder: Path, tmp_path: Path, cached: bool) -> None:
    path = head(tmp_path)
    tensors = RewardHead.open(str(path)).tensors
    with LLM(folder, decoder=None, limits=Limits(prefix_cache=cached)) as llm:
        completion = found(llm, scorer=f"process-reward(path='{path}')", ignore_eos=False)
        everyone = [completion, *completion.alternatives]
        prompt = llm.encode(PROMPT)
        rows = [last_state(llm, [*prompt, *spoken(llm, one)]) for one in everyone]
        gain = llm._norm
        llm.engine.check()
        assert all(pool.held == 0 for pool in llm.engine.pools.values())
    for row, score in zip(rows, completion.search.scores, strict=True):
        logit = (row / gain - tensors["mean"]) @ tensors["out"][:-1] + tensors["out"][-1]
        assert score == pytest.approx(1 / (1 + np.exp(-logit)), abs=2e-4)
    assert list(completion.search.scores) == sorted(completion.search.scores, reverse=True)
    assert len(set(completion.search.scores)) > 1
    assert completion.search.rows > sum(one.stats.rows for one in everyone)


def test_a_process_reward_leads_a_star(llm: LLM, tmp_path: Path) -> None:
    """A process reward also reads partial answers, and gives the same result each time."""
    asked = {
        "scorer": f"process-reward(path='{head(tmp_path)}')", "search": "a-star(step_tokens=4)",
    }  # fmt: skip
    first, again = (llm.complete(PROMPT, **{**SAMPLED, **asked}) for _ in range(2))
    assert first.token_ids == again.token_ids
    assert all(0 < score < 1 for score in first.search.scores)


def classifier(folder: Path, made: Path, layers: int = 1, outputs: int = 1) -> Path:
    """Write a reward model: the weights of ``folder`` with a random score layer."""
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    about = json.loads((folder / "config.json").read_text())
    about["architectures"] = ["LlamaForSequenceClassification"]
    (made / "config.json").write_text(json.dumps(about))
    random = np.random.default_rng(7)
    score = {"score.weight": random.standard_normal((outputs, WIDTH))}
    if layers == 2:
        score = {
            "score.0.weight": random.standard_normal((WIDTH, WIDTH)) / 8,
            "score.0.bias": random.standard_normal(WIDTH), "score.2.bias": np.ones(outputs),
            "score.2.weight": random.standard_normal((outputs, WIDTH)),
        }  # fmt: skip
    weights = load_file(folder / "model.safetensors")
    small = {name: values.astype(np.float32) for name, values in score.items()}
    save_file({**weights, **small}, made / "model.safetensors")
    return made


@pytest.mark.parametrize(("layers", "outputs"), [(1, 1), (1, 2), (2, 1)])
def test_a_reward_model(llm: LLM, folder: Path, tmp_path: Path, layers: int, outputs: int) -> None:
    path = classifier(folder, tmp_path / "reward", layers, outputs)
    completion = found(llm, scorer=f"reward-model(path='{path}')")
    w = load_file(path / "model.safetensors")
    for one, score in zip([completion, *completion.alternatives], completion.search.scores):
        # Both models have the same weights below the score.
        row = last_state(llm, [*llm.encode(PROMPT), *one.token_ids])
        if layers == 2:
            hidden = np.maximum(w["score.0.weight"] @ row + w["score.0.bias"], 0)
            wanted = (w["score.2.weight"] @ hidden + w["score.2.bias"])[0]
        else:
            logits = w["score.weight"] @ row
            wanted = logits[0] if outputs == 1 else 1 / (1 + np.exp(logits[0] - logits[1]))
        assert score == pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_folders_that_score_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="score"):
        find_scorer(f"reward-model(path='{folder}')")
    three = classifier(folder, tmp_path / "three", outputs=3)
    with pytest.raises(InvalidModel, match="3 outputs"):
        find_scorer(f"reward-model(path='{three}')")
    with pytest.raises(InvalidModel, match="score"):  # This is no language model.
        LLM(tmp_path / "three")


@pytest.mark.parametrize(("given", "said"), [
    ("nothing", "scorer"), ("likelihood(norm=max)", "norm"), ("answer", "right"), (3, "function"),
    ("process-reward", "train"), ("reward-model", "folder"),
    ("process-reward(path='/x')", "process_reward"),
])  # fmt: skip
def test_scorers_that_do_not_exist(given: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        find_scorer(given)


@pytest.mark.parametrize("spec", ["process-reward(path='/etc/passwd')", "reward-model(path='/')"])
def test_requests_may_not_name_files(spec: str) -> None:
    with pytest.raises(InvalidInput, match="where the server is started"):
        find_scorer(spec, trusted=False)


def test_a_request_lists_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first search lists the folders of strategies and scorers."""
    find_strategy("majority"), find_scorer("likelihood")
    monkeypatch.setattr(parts, "walk_packages", None)
    find_strategy("best-of(n=2)"), find_scorer("likelihood(norm=sum)")


def test_a_head_of_another_model_ends_its_search_only(llm: LLM, tmp_path: Path) -> None:
    path = head(tmp_path, 32)
    with pytest.raises(InvalidInput, match="network input"):
        found(llm, scorer=f"process-reward(path='{path}')")
    assert scored(llm)
    llm.engine.check()
