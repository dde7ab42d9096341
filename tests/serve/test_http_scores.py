"""The number of log-probabilities in an answer is limited, and large answers come in pieces."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from http_server import FakePool, Running, running, settings

from paradecode.core.errors import InvalidInput
from paradecode.serve import whole as answers
from paradecode.serve.scores import MAX_SCORES, ScoreColumns, text_logprobs
from paradecode.serve.wire import WireScores

TOP = 20


def scores(positions: int, first: int = 0) -> WireScores:
    tokens = [first + at % 500 for at in range(positions * (TOP + 1))]
    return WireScores(
        sizes=[TOP + 1] * positions, tokens=tokens, logprobs=[-token / 7 for token in tokens],
        spelled=[f"t{token}" for token in tokens],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "product"),
    [({"n": 64, "max_tokens": 512}, 64 * 512 * 21), ({"n": 26}, 26 * 512 * 21),
     ({"prompt": ["a"] * 8, "n": 8, "max_tokens": 200}, 64 * 200 * 21),
     ({"prompt": [[1]] * 64, "max_tokens": 196}, 64 * 196 * 21)],
)  # fmt: skip
def test_a_product_that_is_too_large(server: Running, asked: dict[str, Any], product: int) -> None:
    if "prompt" in asked:
        response = server.complete(logprobs=TOP, **asked)
    else:
        response = server.chat(logprobs=True, top_logprobs=TOP, **asked)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "logprobs")
    assert error["type"] == "invalid_request_error"
    for said in ("n", "max_tokens", "top_logprobs", str(product), str(MAX_SCORES), "stream"):
        assert said in error["message"]
    assert server.pool.seen == []


def test_what_has_no_scores_or_a_stream_has_no_such_bound(server: Running) -> None:
    assert server.chat(n=64, max_tokens=512).status_code == 200
    streamed = server.chat(n=64, max_tokens=512, logprobs=True, top_logprobs=TOP, stream=True)
    assert streamed.status_code == 200
    assert server.chat(n=24, max_tokens=512, logprobs=True, top_logprobs=TOP).status_code == 200


def test_scores_of_prompts_count_when_their_length_is_known(server: Running) -> None:
    many = {"prompt": ["ab"] * 64, "max_tokens": 0, "echo": True}  # Two tokens each.
    assert server.complete(logprobs=TOP, **many).status_code == 200
    for _ in range(2):
        server.pool.prompt_tokens = MAX_SCORES // 64 // (TOP + 1) + 1
        response = server.complete(logprobs=TOP, **many)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
        assert server.complete(logprobs=TOP, prompt="ab", max_tokens=0).status_code == 200
        many = {"prompt": "ab", "n": 64, "echo": True, "max_tokens": 1, "stream": True}


@pytest.mark.wide
def test_a_large_answer_comes_in_pieces() -> None:
    """An answer in pieces is the same JSON, and other requests need not wait for all of it."""
    pool = FakePool(texts=["a"] * 60, logprobs=scores(200))
    with running(settings(), pool) as server:
        response = server.chat(max_tokens=512, logprobs=True, top_logprobs=TOP)
        content = response.json()["choices"][0]["logprobs"]["content"]
        assert "content-length" not in response.headers
        assert len(content) == 60 * 200
        expected = ScoreColumns(pool.logprobs)
        for (chosen, *top), entry in zip(expected, content):
            assert (entry["token"], entry["logprob"]) == (chosen.text, chosen.logprob)
            assert entry["bytes"] == list(chosen.spelled)
            assert [one["token"] for one in entry["top_logprobs"]] == [one.text for one in top]
        old = server.complete(max_tokens=512, logprobs=TOP).json()["choices"][0]["logprobs"]
        assert [len(old[name]) for name in sorted(old)] == [60 * 200] * 4
        assert server.chat(max_tokens=512).headers["content-length"]


def test_pieces_are_the_whole() -> None:
    answer = {"a": [1, {"b": None, "c": []}, "é\n"], "d": {}, "e": [[], [True]], "f": 0.5}
    assert json.loads(answers.whole(answer).body) == answer
    lazy = {"list": (number for number in range(3)), "none": iter(()), "inner": [{"x": iter("ab")}]}
    assert json.loads(answers.whole(lazy).body) == {
        "list": [0, 1, 2], "none": [], "inner": [{"x": ["a", "b"]}],
    }  # fmt: skip


def test_the_token_itself_is_among_the_top_ones() -> None:
    found = WireScores(
        sizes=[1, 2, 3, 2], tokens=[1, 2, 3, 4, 5, 4, 6, 7],
        logprobs=[-4.0, -3.0, -1.0, -2.0, -1.0, -2.0, -3.0, -1.0],
        spelled=["a", "b", "c", "d", "e", "d", "x", "x"],
    )  # fmt: skip
    told = text_logprobs([ScoreColumns(found)])
    assert list(told["top_logprobs"]) == [
        {"a": -4.0}, {"b": -3.0, "c": -1.0}, {"d": -2.0, "e": -1.0},
        {"x": -1.0},  # Two tokens that read the same: the likeliest.
    ]  # fmt: skip


def test_columns_are_small() -> None:
    columns = ScoreColumns()
    for _ in range(100):
        columns.add(scores(20))
    assert len(columns) == 2000
    kept = sum(map(sys.getsizeof, vars(columns).values()))
    assert kept < 16 * 2000 * (TOP + 1) + 64 * 500


@pytest.mark.parametrize(
    "change",
    [{"sizes": [1]}, {"sizes": [1, 2]}, {"tokens": [1]}, {"logprobs": [-1.0]},
     {"spelled": ["a", "€"]}, {"spelled": ["a"]}],
)  # fmt: skip
def test_columns_that_do_not_fit(change: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "sizes": [2], "tokens": [1, 2], "logprobs": [-1.0, -2.0], "spelled": ["a", "ÿ"]
    }  # fmt: skip
    assert WireScores(**right).behind(1) == WireScores(sizes=[], tokens=[], logprobs=[], spelled=[])
    with pytest.raises(InvalidInput, match=r"logprobs"):
        WireScores(**right | change)
