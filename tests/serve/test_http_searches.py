"""Searches and ranking over HTTP: fields, limits, streams, and hostile bodies."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from http_server import FakePool, Running, done, events, running, settings

from paradecode.serve.keys import Key
from paradecode.serve.wire import (
    Accepted,
    BranchNews,
    Generate,
    OutputChunk,
    OutputEvent,
    WireSearch,
)


@dataclass
class SearchPool(FakePool):
    """A pool that finds "best" for every search, and ranks candidates by their length."""

    async def _events(self, request: Generate) -> AsyncGenerator[OutputEvent, None]:
        yield Accepted(id=request.id, prompt_tokens=7)
        if request.reads == "candidates":
            ranked = [[-float(len(text)), -1.0] for text in request.candidates]
            yield OutputChunk(id=request.id, index=0, text="", tokens=[], forward=0, ranked=ranked)
            yield done(request.id, 0, "length", tokens=0)
            return
        assert request.search is not None
        if request.search.shows:
            for number in range(request.search.branches):
                yield BranchNews(id=request.id, branch=number, text="be", tokens=2)
            yield BranchNews(id=request.id, branch=1, after=0, reason="stop", score=-0.5)
        for index in range(request.sampling.get("n", 1)):
            yield OutputChunk(id=request.id, index=index, text="best", tokens=[5, 6], forward=3)
            found = WireSearch(branches=4, tokens=50, rows=99, seconds=0.5, score=-0.25 * index)
            yield replace(done(request.id, index), search=found)


@pytest.fixture(scope="module")
def searching() -> Iterator[Running]:
    with running(settings(outputs=16, search_tokens=1000), SearchPool()) as server:
        yield server


@pytest.fixture
def server(searching: Running) -> Running:
    searching.pool.seen.clear()
    return searching


def test_a_search(server: Running) -> None:
    answer = server.chat(search="best-of(n=4)", n=2, max_branches=4, max_search_tokens=900).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["best", "best"]
    assert answer["usage"]["completion_tokens"] == 50, "all branches count, once"
    assert [one["score"] for one in answer["search"]] == [0.0, -0.25]
    (seen,) = server.pool.seen
    assert (seen.search.strategy, seen.search.branches, seen.search.tokens) == (
        "best-of(n=4)", 4, 900,
    )  # fmt: skip
    assert not seen.search.shows
    text = server.complete(search="majority(n=3)", scorer="likelihood(norm=sum)").json()
    assert text["choices"][0]["text"] == "best"
    assert text["search"]["branches"] == 4
    assert server.pool.seen[1].search.scorer == "likelihood(norm=sum)"


@pytest.mark.parametrize(("body", "strategy"), [
    ({"best_of": 4}, "best-of(n=4)"), ({"best_of": 4, "n": 2}, "best-of(n=4)"),
    ({"search": "astar(k=2)"}, "astar(k=2)"),
])  # fmt: skip
def test_vllms_names(server: Running, body: dict[str, Any], strategy: str) -> None:
    assert server.chat(**body).status_code == 200
    assert server.pool.seen[0].search.strategy == strategy


def test_as_many_samples_as_outputs_is_no_search() -> None:
    with running(settings(), FakePool()) as plain:
        for body in ({"best_of": 1}, {"best_of": 3, "n": 3}, {"use_beam_search": False}):
            assert plain.chat(**body).status_code == 200
        assert all(request.search is None for request in plain.pool.seen)


@pytest.mark.parametrize(("body", "param"), [
    ({"search": ""}, "search"), ({"search": "nothing"}, "search"), ({"search": 3}, "search"),
    ({"search": "best-of(n=0)"}, "search"), ({"search": "best-of(n=-1)"}, "search"),
    ({"search": "best-of(n=1e9)"}, "search"), ({"search": "best-of(" * 100}, "search"),
    ({"search": "x" * 2000}, "search"), ({"search": {"a": 1}}, "search"),
    ({"search": "__import__('os')"}, "search"), ({"search": "best-of(n=4", "n": 1}, "search"),
    ({"search": "best-of(n=17)"}, "search"),
    ({"search": "best-of(n=4)", "max_branches": 3}, "search"),
    ({"search": "best-of(n=2)", "n": 3}, "n"),
    ({"search": "best-of(n=2)", "best_of": 2}, "best_of"),
    ({"best_of": 2, "n": 3}, "best_of"), ({"best_of": 65}, "best_of"), ({"best_of": 0}, "best_of"),
    ({"best_of": 17}, "search"), ({"best_of": True}, "best_of"),
    ({"search": "best-of(n=2)", "max_search_tokens": 1001}, "max_search_tokens"),
    ({"search": "best-of(n=2)", "max_search_tokens": 0}, "max_search_tokens"),
    ({"search": "best-of(n=2)", "max_branches": 0}, "max_branches"),
    ({"search": "best-of(n=2)", "scorer": "nothing"}, "scorer"),
    ({"search": "best-of(n=2)", "scorer": "process-reward(path='/etc/passwd')"}, "scorer"),
    ({"search": "best-of(n=2)", "scorer": "reward-model(path='/')"}, "scorer"),
    ({"search": "best-of(n=2)", "scorer": "answer"}, "scorer"),
    ({"scorer": "likelihood"}, "scorer"), ({"max_branches": 3}, "max_branches"),
    ({"show_branches": True}, "show_branches"), ({"length_penalty": 0.5}, "length_penalty"),
    ({"length_penalty": 28.3}, "length_penalty"),
    ({"best_of": 2, "use_beam_search": True}, "use_beam_search"),
])  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], param: str) -> None:
    for ask in (server.chat, server.complete):
        answer = ask(**body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
    assert server.pool.seen == []


def test_beams(server: Running) -> None:
    assert server.chat(use_beam_search=True, n=2, length_penalty=0.5).status_code == 200
    assert server.pool.seen[0].search.strategy == "beam(width=2,length_penalty=0.5)"
    error = server.chat(use_beam_search=True, n=33, length_penalty=0.5).json()["error"]
    assert error["param"] == "use_beam_search"


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_a_stream_shows_the_branches(server: Running, route: str) -> None:
    """Each event has a choice in the usual form, and the last events have the answer."""
    asked = {"search": "best-of(n=3)", "stream": True}
    shown = getattr(server, route)(show_branches=True, **asked)
    *told, last = events(shown)
    assert last == "[DONE]"
    parts = [json.loads(event) for event in told]
    branches = [part["paradecode"]["branch"] for part in parts if "paradecode" in part]
    assert [one["branch"] for one in branches] == [0, 1, 2, 1]
    assert branches[-1]["score"] == -0.5
    assert (branches[-1]["after"], branches[-1]["reason"]) == (0, "stop")
    for part in parts[:-1]:
        (choice,) = part["choices"]
        assert choice["index"] == 0
        assert "delta" in choice or "text" in choice
    assert parts[-1]["search"]["tokens"] == 50
    said = [c.get("text", c.get("delta", {}).get("content")) for p in parts for c in p["choices"]]
    assert "".join(text or "" for text in said) == "best"
    quiet = getattr(server, route)(**asked)
    assert 'branch":' not in quiet.text
    assert "best" in quiet.text


def test_openais_client_reads_the_stream(server: Running) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    more = {"search": "best-of(n=3)", "show_branches": True}
    stream = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True, extra_body=more,
        stream_options={"include_usage": True},
    )  # fmt: skip
    parts = list(stream)
    said = [choice.delta.content for part in parts for choice in part.choices]
    assert "".join(text or "" for text in said) == "best"
    assert parts[-1].usage.completion_tokens == 50


def test_tokens_of_all_branches_count_for_a_key() -> None:
    key = Key(name="k", key="secret-secret-1", tokens_per_minute=200, sequences=3)
    with running(settings(keys=(key,), search_tokens=120), SearchPool()) as server:
        refused = server.chat(search="best-of(n=4)", max_tokens=10)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert server.chat(search="best-of(n=3)", max_tokens=30).status_code == 200
        # The request used 7 tokens for the prompt and 50 for the branches.
        assert server.chat(search="best-of(n=3)", max_search_tokens=120).status_code == 200
        assert server.chat(search="best-of(n=3)", max_tokens=40).status_code == 429


def test_rank(server: Running) -> None:
    body = {"context": "a", "candidates": ["long one", "abc", [1, 2, 3, 4]], "top_n": 2}
    answer = server.post("/v1/rank", body).json()
    assert [one["index"] for one in answer["data"]] == [1, 2]
    assert answer["data"][0] == {"index": 1, "mean": -2.0, "total": -4.0, "tokens": 2}
    assert answer["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    full = server.post("/v1/rank", {**body, "return_logprobs": True}).json()
    assert full["data"][0]["logprobs"] == [-3.0, -1.0]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(server: Running, path: str) -> None:
    body = {"query": "q", "documents": ["longer", {"text": "ab"}], "model": "tiny"}
    answer = server.post(path, body).json()
    assert [one["index"] for one in answer["results"]] == [1, 0]
    first = answer["results"][0]
    assert first["relevance_score"] == pytest.approx(math.exp(-2.0))
    assert first["document"] == {"text": "ab"}
    short = server.post(path, {**body, "top_n": 1, "return_documents": False}).json()
    assert short["results"] == [{"index": 1, "relevance_score": first["relevance_score"]}]
    assert server.pool.seen[0].candidates == ["\nlonger", "\nab"]


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/rank", {"context": "a"}, "candidates"), ("/v1/rank", {"candidates": ["a"]}, "context"),
    ("/v1/rank", {"context": "a", "candidates": []}, "candidates"),
    ("/v1/rank", {"context": "a", "candidates": ["a", ""]}, "candidates"),
    ("/v1/rank", {"context": "a", "candidates": ["a"] * 1025}, "candidates"),
    ("/v1/rank", {"context": "a", "candidates": "abc"}, "candidates"),
    ("/v1/rank", {"context": "a", "candidates": [[-1]]}, "candidates"),
    ("/v1/rank", {"context": "a", "candidates": ["a"], "top_n": 0}, "top_n"),
    ("/v1/rank", {"context": "", "candidates": ["a"]}, "context"),
    ("/rerank", {"query": "a", "documents": [{"body": "a"}]}, "documents"),
    ("/rerank", {"query": "a", "documents": ["a", 3]}, "documents"),
    ("/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
])  # fmt: skip
def test_rankings_that_are_refused(server: Running, path: str, body: Any, param: str) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    assert str(answer.json()["error"]["param"]).startswith(param)
    assert server.pool.seen == []
