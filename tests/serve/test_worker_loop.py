"""The worker's loop with a tiny model: what is served equals what the library generates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from looping import Served, ask

from paradecode.core.errors import BackendError
from paradecode.engine.engine import Limits
from paradecode.engine.scheduler import SLOWER
from paradecode.llm import LLM
from paradecode.models.vocabulary import spelling
from paradecode.serve.lines import encode
from paradecode.serve.outputs import usage
from paradecode.serve.scores import ScoreColumns
from paradecode.serve.wire import (
    Accepted,
    AskStats,
    Cancel,
    ConstraintSpec,
    DecodedText,
    Detokenize,
    Done,
    Drain,
    Failure,
    PromptInput,
    Request,
    Tokenize,
    TokenizedPrompt,
    WorkerStats,
)
from paradecode.serve.worker import loop
from paradecode.serve.worker.loop import LONG
from paradecode.serve.worker.slow import MOST_BYTES, SlowMessage, Turns
from tiny_folder import write_folder

MIXED: dict[str, dict[str, Any]] = {
    "plain": {"decoder": "none"},
    "default": {},
    "lookup": {"decoder": "prompt-lookup(max_ngram=2,budget=fixed)"},
    "fused": {"decoder": {"method": "prompt-lookup+token-recycling"}},
    "seeded": {"temperature": 0.9, "seed": 7, "decoder": "suffix(budget=fixed)"},
    "warm": {"temperature": 1.3, "top_p": 0.9, "seed": 1, "repetition_penalty": 1.2},
    "long": {"prompt": "abcdefgh" * 40, "max_tokens": 20},
}


@pytest.fixture
def llm(folder: str) -> Iterator[LLM]:
    with LLM(folder, threads=1, limits=Limits(batch=8, step_tokens=64, kv_tokens=8192)) as model:
        yield model


def library(llm: LLM, prompt: str = "abcabcab", **settings: Any) -> Any:
    settings.setdefault("max_tokens", 40)
    decoder = {"none": "greedy"}.get(str(settings.get("decoder")), settings.get("decoder"))
    if decoder is not None:
        settings["decoder"] = decoder
    completion = llm.generate([prompt], ignore_eos=True, **settings)[0]
    assert completion.error is None
    return completion


def test_served_outputs_equal_the_librarys(llm: LLM) -> None:
    expected = {name: library(llm, **settings) for name, settings in MIXED.items()}
    served = Served(llm)
    for name, settings in MIXED.items():
        served.give(ask(name, **{"ignore_eos": True, "max_tokens": 40, **settings}))
    served.finish()
    for name, completion in expected.items():
        chunks, end = served.of(name)
        assert served.tokens(name) == completion.token_ids, name
        assert served.text(name) == completion.text, name
        assert isinstance(end, Done)
        assert end.finish_reason == completion.finish_reason
        assert end.stats.prompt_tokens == len(completion.prompt_token_ids)
        assert end.stats.generated == len(completion.token_ids)
        numbers = [chunk.forward for chunk in chunks]
        assert numbers == sorted(set(numbers))
        assert end.stats.forwards == numbers[-1]
    assert any(len(chunk.tokens) > 1 for chunk in served.of("lookup")[0])


def test_several_outputs_and_log_probabilities(llm: LLM) -> None:
    settings: dict[str, Any] = {
        "n": 3,
        "seed": 5,
        "temperature": 1.0,
        "logprobs": 2,
        "max_tokens": 12,
    }
    completion = library(llm, **settings)
    served = Served(llm)
    served.give(ask("a", ignore_eos=True, **settings))
    served.finish()
    for index, one in enumerate([completion, *completion.alternatives]):
        assert served.tokens("a", index) == one.token_ids
        scores = ScoreColumns(*(chunk.logprobs for chunk in served.of("a", index)[0]))
        assert len(scores) == len(one.token_ids)
        for (chosen, *top), own in zip(scores, one.logprobs, strict=True):
            assert (chosen.token, chosen.logprob) == (own.token, own.logprob)
            assert [(c.token, c.logprob) for c in top] == list(own.top)
            assert chosen.spelled == spelling(llm.tokenizer, chosen.token)
    assert served.tokens("a", 0) != served.tokens("a", 1)


def test_stop_texts_never_show(llm: LLM) -> None:
    text = library(llm).text
    stop = text[9:13]
    served = Served(llm)
    served.give(ask("a", stop=stop, ignore_eos=True, max_tokens=40))
    served.finish()
    end = served.of("a")[1]
    assert isinstance(end, Done)
    assert (end.finish_reason, end.stopped) == ("stop", stop)
    assert served.text("a") == text[: text.index(stop)]


def test_predictions_are_counted(llm: LLM) -> None:
    known = library(llm).text
    served = Served(llm)
    # Alone: beside others the prompt's step, where this one drafts, goes without.
    served.give(ask("bad", prediction="z" * 40, ignore_eos=True, max_tokens=40))
    served.finish()
    served.give(
        ask("good", prediction=known, ignore_eos=True, max_tokens=40),
        ask("none", ignore_eos=True, max_tokens=40),
    )
    served.finish()
    details = {}
    for name in ("good", "bad", "none"):
        end = served.of(name)[1]
        assert isinstance(end, Done)
        assert served.text(name) == known
        details[name] = usage([end], 1)["completion_tokens_details"]
        assert sum(end.stats.accepted_per_position) == end.stats.accepted
    assert details["good"]["accepted_prediction_tokens"] > 0
    assert details["bad"]["rejected_prediction_tokens"] > 0
    assert set(details["none"].values()) == {0}
    assert "prompt-lookup" in served.of("none")[1].method  # type: ignore[union-attr]


def test_cancelling_frees_the_pages_at_once(llm: LLM) -> None:
    served = Served(llm)
    served.give(*(ask(f"r{i}", n=2, ignore_eos=True, max_tokens=400) for i in range(6)))
    for _ in range(5):
        served.loop.step()
    held = llm.engine.pools["target"].held
    served.give(Cancel(id="r0"), Cancel(id="r5"), Cancel(id="unknown"))
    llm.engine.check()
    assert llm.engine.pools["target"].held < held
    for index in range(2):
        running, waiting = served.of("r0", index)[1], served.of("r5", index)[1]
        assert isinstance(running, Done)
        assert isinstance(waiting, Done)
        assert (running.finish_reason, waiting.finish_reason) == ("cancelled", "cancelled")
        assert running.stats.generated == len(served.tokens("r0", index)) > 0
        assert waiting.stats.generated == 0
    served.give(*(Cancel(id=f"r{i}") for i in range(6)))
    served.finish()


def test_too_many_waiting_requests_are_refused(llm: LLM) -> None:
    served = Served(llm, queue_requests=4)
    served.give(*(ask(f"r{i}", ignore_eos=True, max_tokens=8) for i in range(12)))
    served.give(ask("late", max_tokens=8), ask("two", n=2, max_tokens=8))
    for id in ("late", "two"):
        end = served.of(id)[1]
        assert isinstance(end, Failure)
        assert (end.status, end.type) == (429, "rate_limit_error")
        assert end.retry_after is not None
        assert end.retry_after >= 1
    served.finish()
    assert all(isinstance(served.of(f"r{i}")[1], Done) for i in range(12))
    served.give(ask("again", max_tokens=8))
    served.finish()
    assert isinstance(served.of("again")[1], Done)


def test_too_many_waiting_prompt_tokens_are_refused(llm: LLM) -> None:
    served = Served(llm, queue_tokens=100)
    served.give(ask("long", "a" * 300, max_tokens=4))  # Nobody else waits: it may.
    served.give(ask("other", "a" * 80, max_tokens=4))
    end = served.of("other")[1]
    assert isinstance(end, Failure)
    assert end.status == 429
    served.finish()
    assert isinstance(served.of("long")[1], Done)


def test_draining_finishes_what_was_accepted(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("old", ignore_eos=True, max_tokens=30), Drain(), ask("new"))
    end = served.of("new")[1]
    assert isinstance(end, Failure)
    assert end.status == 503
    served.finish()
    assert len(served.tokens("old")) == 30


def test_tenants_take_turns(llm: LLM) -> None:
    served = Served(llm)
    served.give(
        *(ask(f"a{i}", salt="a", ignore_eos=True, max_tokens=10) for i in range(60)),
        *(ask(f"b{i}", salt="b", ignore_eos=True, max_tokens=10) for i in range(3)),
    )
    served.finish()
    order = [event.id for event in served.events if isinstance(event, Done)]
    last = max(order.index(f"b{i}") for i in range(3))
    assert last < 20, order


def test_priority_is_among_the_requests_of_one_key(llm: LLM) -> None:
    served = Served(llm)
    served.give(*(ask(f"a{i}", key="a", ignore_eos=True, max_tokens=10) for i in range(20)))
    served.give(ask("urgent", key="a", priority=-1, ignore_eos=True, max_tokens=10))
    first = [ask(f"b{i}", key="b", priority=-100, ignore_eos=True, max_tokens=10) for i in range(9)]
    served.give(*first, ask("modest", key="c", ignore_eos=True, max_tokens=10))
    served.finish()
    order = [event.id for event in served.events if isinstance(event, Done)]
    assert order.index("urgent") < 12
    assert order.index("modest") < 12, order  # Others' priorities do not concern it.


def test_a_greedy_key_leaves_room_and_rows_to_a_modest_one(llm: LLM) -> None:
    """It asks for many outputs at once; the other one has a slot, and short steps, at once."""
    alone = Served(llm)
    alone.give(ask("modest", key="modest", ignore_eos=True, max_tokens=40, decoder="none"))
    alone.finish()
    served = Served(llm, queue_requests=8)
    for i in range(3):
        greedy = {"n": 5, "decoder": "none", "ignore_eos": True, "max_tokens": 300}
        served.give(ask(f"g{i}", "ab" * 40, key="greedy", **greedy))
    served.give(ask("refused", key="greedy", n=5, max_tokens=9))
    for _ in range(20):
        served.loop.step()
        if len(llm.engine.running) == 7:
            break
    else:
        raise AssertionError(len(llm.engine.running))
    served.loop.step()
    assert len(llm.engine.running) == 7  # One of eight is kept free.
    before, widest = served.loop._steps, 0
    served.give(ask("modest", key="modest", ignore_eos=True, max_tokens=40, decoder="none"))
    assert served.loop.step()  # Its prompt, which is several rows.
    while served.of("modest")[1] is None:
        assert served.loop.step()
        widest = max(widest, llm.engine.load.rows)
    assert served.loop._steps - before <= 42  # A token a step: it waits for nobody.
    cost = partial(llm.engine.load.of_step, "target")
    assert widest <= 2 or cost(widest, 0) <= SLOWER * cost(1, 0)
    assert served.tokens("modest") == alone.tokens("modest")
    refused = served.of("refused")[1]
    assert isinstance(refused, Failure)
    assert refused.status == 429
    assert refused.retry_after is not None
    served.finish()


def test_many_salts_of_one_key_forget_their_own(llm: LLM) -> None:
    resources = llm.engine
    kept = resources.stores_of("s", "modest")
    for i in range(200):
        resources.stores_of(f"salt {i}", "greedy")
    assert resources.stores_of("s", "modest") is kept


def test_deadlines_end_requests_with_what_they_have(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", deadline=1000.0, ignore_eos=True, max_tokens=400))
    served.loop.step()
    served.loop.jobs["a"][0].sequence.arrived -= 2000.0
    served.loop.step()
    end = served.of("a")[1]
    assert isinstance(end, Done)
    assert end.finish_reason == "deadline"
    assert end.stats.generated == 1
    served.finish()


POISON = 7


def test_a_failure_is_its_requests_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, forward = llm.backend, llm.backend.forward

    def fragile(spans: Any) -> Any:
        if any(POISON in span.tokens for span in spans):
            raise BackendError("poisoned")
        return forward(spans)

    monkeypatch.setattr(backend, "forward", fragile)
    served = Served(llm)
    bias = {str(POISON): -1000.0}
    good: dict[str, Any] = {
        "max_tokens": 20,
        "ignore_eos": True,
        "logit_bias": bias,
        "decoder": "none",
    }
    served.give(ask("good", **good))
    bad = replace(ask("bad", n=3, max_tokens=9), prompt=PromptInput(tokens=[5, POISON, 6]))
    served.give(bad)
    served.finish()
    end = served.of("bad")[1]
    assert isinstance(end, Failure)
    assert (end.status, end.type) == (500, "server_error")
    assert "poisoned" not in end.message
    assert len(served.tokens("good")) == 20
    served.give(ask("after", **good))
    served.finish()
    assert served.tokens("after") == served.tokens("good")


def test_a_broken_engine_is_reported_to_all(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(llm)
    served.give(ask("a"), ask("b", n=2))

    def broken() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(llm.engine, "step", broken)
    assert not served.loop.step()
    for id in ("a", "b"):
        end = served.of(id)[1]
        assert isinstance(end, Failure)
        assert end.status == 500
    assert "no more" in caplog.text


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask("x", max_tokens=0), "max_tokens"),
        (ask("x", temperature="hot"), "temperature"),
        (ask("x", beams=4), "sampling parameter"),
        (ask("x", n=1000), "n"),
        (ask("x", stop_token_ids=[96]), "stop_token_ids"),
        (ask("x", decoder="no-such-method"), "decoder"),
        (ask("x", decoder={"method": "threshold"}), "decoder"),
        (ask("x", decoder={"method": ["a"]}), "decoder"),
        (ask("x", decoder={"method": {"a": 1}}), "method"),
        (ask("x", decoder="retrieval(datastore='/etc/passwd')"), "retrieval.datastore"),
        (ask("x", decoder={"method": "draft-model", "model": "elsewhere/x"}), "decoder.model"),
        (ask("x", decoder="draft-model"), "draft_model"),
        (ask("x", decoder="(" * 5000), "decoder"),
        (ask("x", "a" * 5000), "prompt"),
        (ask("x", prediction="a" * 10**6), "prediction"),
        (ask("x", constraint=ConstraintSpec(type="python", value={})), "constraint.type"),
        (ask("x", "\ud800"), "prompt.text"),
        (replace(ask("x"), prompt=PromptInput(tokens=[])), "prompt"),
        (replace(ask("x"), prompt=PromptInput(tokens=[96])), "prompt"),
        (replace(ask("x"), prompt=PromptInput(tokens=[5] * 4096)), "prompt"),
        (
            replace(ask("x"), prompt=PromptInput(messages=[{"role": "user", "content": "a"}])),
            "model",
        ),
    ],
)
def test_unusable_requests_are_refused(llm: LLM, request_: Any, param: str) -> None:
    served = Served(llm)
    served.give(request_)
    end = served.of("x")[1]
    assert isinstance(end, Failure)
    assert (end.status, end.type, end.param) == (400, "invalid_request_error", param)
    assert not llm.engine.busy
    assert not served.loop.jobs


def test_one_id_is_one_request(llm: LLM) -> None:
    served = Served(llm)
    served.give(ask("a", ignore_eos=True, max_tokens=9), ask("a", "zz", max_tokens=3))
    served.finish()
    assert sum(isinstance(event, Accepted) for event in served.events) == 1
    assert len(served.tokens("a")) == 9


def test_lines_that_are_no_messages(llm: LLM) -> None:
    served = Served(llm)
    served.give(b"garbage\n", b'{"kind":"generate","id":"x"}\n', b"\n", b"[]\n")
    assert [e.id for e in served.events if isinstance(e, Failure)] == ["worker", "x"] + [
        "worker"
    ] * 2


def test_questions(llm: LLM) -> None:
    served = Served(llm)
    served.give(Tokenize(id="t", prompt=PromptInput(text="hi!")))
    found = served.events[-1]
    assert isinstance(found, TokenizedPrompt)
    assert found.texts == ["h", "i", "!"]
    served.give(Detokenize(id="d", tokens=[*found.tokens, 95]), AskStats(id="s"))
    text, stats = served.events[-2:]
    assert isinstance(text, DecodedText)
    assert text.text == "hi!"
    assert isinstance(stats, WorkerStats)
    assert (stats.running, stats.waiting, stats.held_pages) == (0, 0, 0)
    assert stats.memory_bytes > 1 << 20


def test_ids_that_the_model_does_not_have_are_refused(llm: LLM) -> None:
    served = Served(llm)
    served.give(Detokenize(id="d", tokens=[1, 1 << 20]))
    assert served.events[-1] == Failure(
        id="d", status=400, param="tokens",
        message="tokens: 1048576 is not usable; token ids go up to 95",
    )  # fmt: skip


def test_a_request_that_waits_for_its_constraint_can_be_cancelled(llm: LLM) -> None:
    served = Served(llm)
    choice = ConstraintSpec(type="choice", value=["abba", "cab"])
    for id, early in (("early", True), ("late", False)):
        later = served.loop.read(encode(ask(id, constraint=choice, max_tokens=20)))
        assert isinstance(later, SlowMessage)
        assert served.loop.handle(later) == []
        made = None if early else later.work()
        served.give(Cancel(id=id), Drain())
        assert not served.loop.jobs
        served._send(served.loop.handle(made or later.work()))
        end = served.of(id)[1]
        assert isinstance(end, Failure)
        assert end.status == (400 if early else 503)
    served.finish()


def test_keys_take_turns_with_their_constraints() -> None:
    """A key with many heavy ones delays another by one of them, not by all."""
    made: list[str] = []
    go, ended = threading.Event(), threading.Event()

    def put(what: str) -> None:
        made.append(what)
        if len(made) == 7:
            ended.set()

    turns: Turns[str] = Turns(put, most=3, name="constraints")

    def add(name: str, key: str, work: Callable[[], str], size: int = 1) -> None:
        turns.add(SlowMessage(name, "constraints", key, size, work, lambda: "refused"))

    add("0", "greedy", lambda: "0" if go.wait(60) else "")
    while turns._waiting:
        time.sleep(0.01)
    for name in ("1", "2", "3", "4"):
        add(name, "greedy", partial(str, name))
    add("large", "other", lambda: "large", MOST_BYTES)
    add("modest", "modest", lambda: "modest")
    go.set()
    assert ended.wait(60)
    assert made == ["refused", "refused", "0", "1", "modest", "2", "3"]
    while turns._bytes:
        time.sleep(0.01)


def long_messages(llm: LLM) -> dict[str, tuple[Request, type]]:
    """What is asked with a long text, and what answers it."""
    text = "ab" * 300
    return {
        "generate": (ask("long", text, max_tokens=2), Accepted),
        "tokenize": (Tokenize(id="long", prompt=PromptInput(text=text)), TokenizedPrompt),
        "detokenize": (Detokenize(id="long", tokens=llm.encode(text)), DecodedText),
    }


@pytest.mark.parametrize("kind", ["generate", "tokenize", "detokenize"])
def test_short_messages_do_not_wait_for_long_ones(
    llm: LLM, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LONG", 600)
    served = Served(llm)
    asked, answer = long_messages(llm)[kind]
    later = served.loop.read(encode(asked))
    assert isinstance(later, SlowMessage)
    assert later.kind == "long texts"
    assert served.loop.handle(later) == []
    served.give(ask("short", "ab", max_tokens=2))
    served.finish()
    assert len(served.tokens("short")) == 2
    served._send(served.loop.handle(later.work()))
    assert isinstance(served.events[-1], answer)
    assert not served.loop._later
    served.finish()


def test_what_goes_on_elsewhere_stands_in_no_line(llm: LLM) -> None:
    """Its stream would be lost if it were refused: neither its key's line nor the bytes count."""
    served, text = Served(llm), "ab" * LONG
    for request, key, size in (
        (ask("new", text, key="k"), "k", len(text)),
        (ask("resumed", text, key="k", resume=[[5]]), "resumed", 0),
    ):
        slow = served.loop.read(encode(request))
        assert isinstance(slow, SlowMessage)
        assert slow.key == key
        assert slow.size == 0 if size == 0 else slow.size > size


def test_canvases_are_shown_on_demand(tmp_path: Path) -> None:
    write_folder(tmp_path, "sdar")
    with LLM(str(tmp_path), threads=1) as llm:
        expected = llm.generate(["abc"], max_tokens=16, ignore_eos=True)[0]
        served = Served(llm)
        served.give(
            ask("shown", "abc", max_tokens=16, ignore_eos=True, provisional=True),
            ask("plain", "abc", max_tokens=16, ignore_eos=True),
            ask("static", "abc", max_tokens=16, ignore_eos=True, decoder="none"),
        )
        served.finish()
        assert served.tokens("shown") == served.tokens("plain") == expected.token_ids
        canvases = [chunk.canvas for chunk in served.of("shown")[0] if chunk.canvas]
        assert any(None in canvas for canvas in canvases)
        assert all(chunk.canvas is None for chunk in served.of("plain")[0])
        end = served.of("static")[1]
        assert isinstance(end, Done)
        assert end.method == "static"
        assert end.diffusion_steps == end.stats.forwards >= 16


def test_constrained_outputs(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    served = Served(llm)
    choice = ConstraintSpec(type="choice", value=["abba", "cab"])
    served.give(
        ask("one", constraint=choice, max_tokens=20),
        ask("two", n=2, constraint=choice, max_tokens=20, temperature=2.0, seed=4, decoder="none"),
        ask("bad", constraint=ConstraintSpec(type="regex", value="(")),
    )
    served.finish()
    assert served.text("one") in choice.value
    assert {served.text("two", 0), served.text("two", 1)} <= set(choice.value)
    end = served.of("bad")[1]
    assert isinstance(end, Failure)
    assert end.status == 400
