"""Results about prompts are right: echo, prompt_logprobs, max_tokens 0, and embeddings."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from http_server import Running, events

from paradecode.serve.wire import WireScores

HEL = WireScores(sizes=[2], tokens=[5, 5], logprobs=[-2.0, -2.0], spelled=["Hel", "Hel"])
READ = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"b": -0.5, "c": -0.25}], "text_offset": [0, 1]}  # fmt: skip


def test_an_echo_without_logprobs_reads_nothing(server: Running) -> None:
    for prompt in ("ab", [1, 2]):
        answer = server.complete(prompt=prompt, echo=True).json()
        assert [choice["text"] for choice in answer["choices"]] == ["abHello"]
    assert [request.reads for request in server.pool.seen] == [None, None]


def test_an_echo_with_logprobs(server: Running) -> None:
    server.pool.logprobs = HEL
    answer = server.complete(prompt="ab", echo=True, logprobs=1, n=2).json()
    assert len(answer["choices"]) == 2
    for choice in answer["choices"]:
        assert choice["text"] == "abHello"
        assert choice["logprobs"] == {
            "tokens": ["a", "b", "Hel", "Hel"], "token_logprobs": [None, -0.5, -2.0, -2.0],
            "top_logprobs": [None, {"b": -0.5, "c": -0.25}, {"Hel": -2.0}, {"Hel": -2.0}],
            "text_offset": [0, 1, 2, 5],
        }  # fmt: skip


def test_a_streamed_echo(server: Running) -> None:
    server.pool.logprobs = HEL
    *lines, last = events(server.complete(prompt="ab", echo=True, logprobs=1, stream=True))
    assert last == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert "".join(choice["text"] for choice in choices) == "abHello"
    assert choices[0]["logprobs"] == READ
    offsets = [c["logprobs"]["text_offset"] for c in choices if c["logprobs"]]
    assert offsets == [[0, 1], [2], [5]]


def test_no_tokens_at_all(server: Running) -> None:
    answer = server.complete(prompt=["ab", "cd"], max_tokens=0, echo=True, logprobs=1).json()
    assert [request.reads for request in server.pool.seen] == ["logprobs"] * 2
    for choice, text in zip(answer["choices"], ("ab", "cd"), strict=True):
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert choice["logprobs"] == READ
    assert answer["usage"]["completion_tokens"] == 0
    assert server.complete(max_tokens=0).json()["choices"][0]["text"] == ""


def test_logprobs_of_a_prompt(server: Running) -> None:
    expected = [None, {"98": {"logprob": -0.5, "rank": None, "decoded_token": "b"},
                       "99": {"logprob": -0.25, "rank": 1, "decoded_token": "c"}}]  # fmt: skip
    for answer in (server.complete(prompt_logprobs=1).json()["choices"][0],
                   server.chat(prompt_logprobs=1).json()):  # fmt: skip
        assert answer["prompt_logprobs"] == expected
    assert [request.reads for request in server.pool.seen].count("logprobs") == 2


@pytest.mark.parametrize("more", [{"max_tokens": 0}, {"prompt_logprobs": 1}])
def test_a_stream_has_outputs(server: Running, more: dict[str, Any]) -> None:
    assert server.complete(stream=True, **more).status_code == 400


def test_many_inputs_are_read_in_turn(server: Running) -> None:
    """The route takes 2,048 inputs like OpenAI's, although a request has at most 64 outputs."""
    answer = server.post("/v1/embeddings", {"input": ["a"] * 2048})
    assert [entry["index"] for entry in answer.json()["data"]] == [*range(2048)]
    for field in (["a"] * 2049, [[1]] * 2049):
        error = server.post("/v1/embeddings", {"input": field}).json()["error"]
        assert error["param"] == "input"
        assert "2048" in error["message"]
    error = server.complete(prompt=["a"] * 65).json()["error"]  # These have outputs.
    assert error["param"] == "prompt"


def test_embeddings_have_length_one(server: Running) -> None:
    plain = server.post("/v1/embeddings", {"input": ["a", "b"], "user": "u"}).json()
    assert [entry["embedding"] for entry in plain["data"]] == [pytest.approx([0.6, 0.8])] * 2
    assert [entry["index"] for entry in plain["data"]] == [0, 1]
    assert plain["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
    packed = server.post("/v1/embeddings", {"input": [1, 2], "encoding_format": "base64"}).json()
    data = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert data == pytest.approx([0.6, 0.8])
