"""Searches and ranking in a worker give what the library finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looping import Served, ask

from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode.serve.wire import BranchNews, Cancel, Done, Failure, SearchSpec
from tiny_folder import write_folder

SAMPLED: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 24, "stop": ["k"]}
SPECS = [
    "best-of(n=5)", "majority(n=4)", "ffs(n=4)", "ffs(n=4,pick=last,keep=3)",
    "a-star(k=3,step_tokens=6)",
]  # fmt: skip


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_folder(tmp_path_factory.mktemp("llama"), "llama")
    with LLM(folder, threads=1, limits=Limits(batch=8, step_tokens=64, kv_tokens=8192)) as model:
        yield model


def spec(strategy: str, **more: Any) -> SearchSpec:
    return SearchSpec(strategy=strategy, shows=True, **more)


def told(served: Served, id: str) -> list[BranchNews]:
    return [e for e in served.events if isinstance(e, BranchNews) and e.id == id]


def test_served_searches_equal_the_librarys(llm: LLM) -> None:
    """All searches run at the same time, beside a plain request, and give the library's results."""
    specs = [*SPECS, "beam(width=3)", "diverse-beam(width=4)", "superposed(k=2)"]
    wanted = {name: llm.complete("abcabcab", search=name, **SAMPLED) for name in specs}
    plain = llm.complete("abcabcab", max_tokens=40)
    served = Served(llm)
    for name in specs:
        served.give(ask(name, search=spec(name), **SAMPLED))
    served.give(ask("plain", max_tokens=40))
    served.finish()
    assert not served.loop.searches
    assert served.tokens("plain") == plain.token_ids
    for name, found in wanted.items():
        chunks, end = served.of(name)
        assert isinstance(end, Done), end
        assert (served.text(name), served.tokens(name)) == (found.text, found.token_ids)
        assert (end.finish_reason, len(chunks)) == (found.finish_reason, 1)
        assert end.search is not None
        assert found.search is not None
        assert end.search.score == found.search.scores[0]
        assert end.search.branches == found.search.branches
        if not name.startswith("ffs"):  # Who is cancelled at which token depends on the batch.
            assert end.search.tokens == found.search.tokens
        assert end.stats.generated == len(found.token_ids)
        assert end.stats.prompt_tokens == len(found.prompt_token_ids)


@pytest.mark.parametrize("name", SPECS)
def test_branches_are_told_as_they_grow(llm: LLM, name: str) -> None:
    served = Served(llm)
    served.give(ask("a", search=spec(name), **SAMPLED))
    served.finish()
    news = told(served, "a")
    texts: dict[int, str] = {}
    for one in news:
        assert one.after is None or one.after < one.branch
        texts[one.branch] = texts.get(one.branch, "") + one.text
    ends = {one.branch: one for one in news if one.reason is not None}
    assert sorted(ends) == sorted(texts) == list(range(len(texts)))
    _, end = served.of("a")
    assert isinstance(end, Done)
    assert end.search is not None
    assert end.search.tokens == sum(one.tokens for one in ends.values())
    chains = [texts[one.branch] for one in ends.values() if one.after is None]
    for one in ends.values():
        if one.after is not None:
            chains.append(texts[one.after] + texts[one.branch])
    assert any(served.text("a").startswith(text) for text in chains)
    if name.startswith(("best-of", "a-star")):
        assert all(one.score is not None for one in [*ends.values()])
    assert [type(event) for event in served.events[-2:]] == [type(served.of("a")[0][0]), Done]


def test_the_n_best_are_the_outputs(llm: LLM) -> None:
    found = llm.complete("abcabcab", search="best-of(n=5)", **SAMPLED)
    served = Served(llm)
    served.give(ask("a", n=3, search=spec("best-of(n=5)"), logprobs=1, **SAMPLED))
    served.finish()
    for index, one in enumerate([found, *found.alternatives][:3]):
        chunks, end = served.of("a", index)
        assert served.text("a", index) == one.text
        assert chunks[0].logprobs is not None
        assert len(chunks[0].logprobs.sizes) == len(one.token_ids)
        assert isinstance(end, Done)
        assert end.search is not None
        assert found.search is not None
        assert end.search.score == found.search.scores[index]


def test_cancelled_branches_are_no_outputs(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", n=4, search=spec("ffs(n=4)"), **SAMPLED))
    served.finish()
    failed = served.of("a")[1]
    assert isinstance(failed, Failure)
    assert (failed.status, failed.param) == (400, "n")


@pytest.mark.parametrize(("search", "param"), [
    (spec("best-of(n=5)", branches=4), "branches"),
    (spec("best-of(n=5)", tokens=4), "max_tokens"),
    (spec("nothing"), "search"), (spec("best-of(n=0)"), "search=best-of.n"),
    (spec("best-of", scorer="nothing"), "scorer"),
    (spec("best-of", scorer="process-reward(path='/x')"), "scorer=process-reward.path"),
    (spec("a-star", scorer="answer"), "answer.right"),
])  # fmt: skip
def test_what_cannot_be_searched_ends_that_request_only(
    llm: LLM, search: SearchSpec, param: str
) -> None:
    served = Served(llm)
    served.give(ask("a", search=search, **SAMPLED), ask("b", max_tokens=8))
    served.finish()
    failed = served.of("a")[1]
    assert isinstance(failed, Failure), failed
    assert (failed.status, failed.param) == (400, param)
    assert isinstance(served.of("b")[1], Done)


def test_tokens_are_shared_out(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", search=spec("best-of(n=5)", tokens=30), **{**SAMPLED, "stop": []}))
    served.finish()
    end = served.done("a")
    assert end.search is not None
    assert end.search.tokens <= 30
    assert (end.finish_reason, end.stats.generated) == ("length", 6)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_search_frees_its_pages(llm: LLM, steps: int) -> None:
    served = Served(llm)
    served.give(ask("a", n=2, search=spec("best-of(n=5)"), **SAMPLED))
    for _ in range(steps):
        served.loop.step()
    served.give(Cancel(id="a"))
    assert not served.loop.searches
    assert [pool.held for pool in llm.engine.pools.values()] == [0]
    for index in range(2):
        end = served.done("a", index)
        assert end.finish_reason == "cancelled"
    served.finish()


def test_a_deadline_ends_every_branch(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", search=spec("best-of(n=5)"), deadline=0.0, **SAMPLED))
    served.finish()
    end = served.done("a")
    assert end.finish_reason == "deadline"


def test_a_worker_that_died_is_no_loss(llm: LLM) -> None:
    """If a worker dies, another one starts the search again with the same seed and result."""
    served = Served(llm)
    served.give(
        ask("a", search=spec("majority(n=4)"), **SAMPLED),
        ask("b", search=spec("majority(n=4)"), resume=[[]], **SAMPLED),
    )
    served.finish()
    assert served.tokens("a") == served.tokens("b")


def test_the_workers_own_scorer(llm: LLM) -> None:
    served = Served(llm, scorer="answer(right='zzz')")
    served.give(
        ask("own", search=spec("best-of(n=3)"), **SAMPLED),
        ask("named", search=spec("best-of(n=3)", scorer="likelihood"), **SAMPLED),
    )
    served.finish()
    found = {}
    for name in ("own", "named"):
        end = served.done(name)
        assert end.search is not None
        found[name] = end.search.score
    assert found["own"] == 0.0
    assert found["named"] is not None
    assert found["named"] < 0.0


def test_candidates(llm: LLM) -> None:
    given = ["abc", "cab", [5, 6, 7, 8], "z"]
    wanted = {one.index: list(one.logprobs) for one in llm.rank("abcabcab", given)}
    served = Served(llm)
    served.give(ask("a", reads="candidates", candidates=given, max_tokens=1))
    served.give(ask("bad", reads="candidates", candidates=[[10_000]], max_tokens=1))
    served.give(ask("none", reads="candidates", candidates=[], max_tokens=1))
    served.give(ask("long", reads="candidates", candidates=["a" * 513], max_tokens=1))
    served.finish()
    (chunk,), end = served.of("a")
    assert chunk.ranked == [wanted[index] for index in range(4)]
    assert isinstance(end, Done)
    for name in ("bad", "none", "long"):
        failed = served.of(name)[1]
        assert isinstance(failed, Failure)
        assert (failed.status, failed.param) == (400, "candidates")
    served.finish()


def test_no_folder_is_read_for_a_request(llm: LLM, tmp_path: Path) -> None:
    served = Served(llm)
    named = spec("best-of", scorer=f"reward-model(path='{tmp_path}')")
    served.give(ask("a", search=named, **SAMPLED))
    failed = served.of("a")[1]
    assert isinstance(failed, Failure)
    assert "where the server is started" in failed.message
