"""The worker serves keys, tenants and priorities in turn, and slow messages delay nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from looping import Served, ask

from paradecode.engine.scheduler import SLOWER
from paradecode.llm import LLM
from paradecode.serve.lines import encode
from paradecode.serve.wire import (
    Accepted,
    Cancel,
    ConstraintSpec,
    DecodedText,
    Detokenize,
    Done,
    Drain,
    PromptInput,
    Request,
    Tokenize,
    TokenizedPrompt,
)
from paradecode.serve.worker import loop
from paradecode.serve.worker.loop import LONG
from paradecode.serve.worker.slow import MOST_BYTES, SlowMessage, Turns


def test_too_many_waiting_requests_are_refused(llm: LLM) -> None:
    served = Served(llm, queue_requests=4)
    served.give(*(ask(f"r{i}", ignore_eos=True, max_tokens=8) for i in range(12)))
    served.give(ask("late", max_tokens=8), ask("two", n=2, max_tokens=8))
    for id in ("late", "two"):
        end = served.failure(id)
        assert (end.status, end.type) == (429, "rate_limit_error")
        assert end.retry_after is not None
        assert end.retry_after >= 1
    served.finish()
    assert all(served.done(f"r{i}") for i in range(12))
    served.run(ask("again", max_tokens=8))
    served.done("again")


def test_too_many_waiting_prompt_tokens_are_refused(llm: LLM) -> None:
    served = Served(llm, queue_tokens=100)
    served.give(ask("long", "a" * 300, max_tokens=4))  # Nobody else waits: it may.
    served.give(ask("other", "a" * 80, max_tokens=4))
    end = served.failure("other")
    assert end.status == 429
    served.finish()
    served.done("long")


def test_tenants_take_turns(llm: LLM) -> None:
    served = Served(llm)
    served.run(
        *(ask(f"a{i}", salt="a", ignore_eos=True, max_tokens=10) for i in range(60)),
        *(ask(f"b{i}", salt="b", ignore_eos=True, max_tokens=10) for i in range(3)),
    )
    order = [event.id for event in served.events if isinstance(event, Done)]
    last = max(order.index(f"b{i}") for i in range(3))
    assert last < 20, order


def test_priority_is_among_the_requests_of_one_key(llm: LLM) -> None:
    served = Served(llm)
    served.give(*(ask(f"a{i}", key="a", ignore_eos=True, max_tokens=10) for i in range(20)))
    served.give(ask("urgent", key="a", priority=-1, ignore_eos=True, max_tokens=10))
    first = [ask(f"b{i}", key="b", priority=-100, ignore_eos=True, max_tokens=10) for i in range(9)]
    served.run(*first, ask("modest", key="c", ignore_eos=True, max_tokens=10))
    order = [event.id for event in served.events if isinstance(event, Done)]
    assert order.index("urgent") < 12
    assert order.index("modest") < 12, order  # Others' priorities do not concern it.


def test_a_greedy_key_leaves_room_and_rows_to_a_modest_one(llm: LLM) -> None:
    """A key with few requests gets a slot and short steps at once, beside a busy key."""
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
    refused = served.failure("refused")
    assert refused.status == 429
    assert refused.retry_after is not None
    served.finish()


def test_many_salts_of_one_key_forget_their_own(llm: LLM) -> None:
    resources = llm.engine
    kept = resources.stores.of("s", "modest")
    for i in range(200):
        resources.stores.of(f"salt {i}", "greedy")
    assert resources.stores.of("s", "modest") is kept


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
        end = served.failure(id)
        assert end.status == (400 if early else 503)
    served.finish()


def test_keys_take_turns_with_their_constraints() -> None:
    """A key with many heavy constraints delays another key by one of them, and not by all."""
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
    """Return name -> a request with a long text, and the type of its answer."""
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
    served.run(ask("short", "ab", max_tokens=2))
    assert len(served.tokens("short")) == 2
    served._send(served.loop.handle(later.work()))
    assert isinstance(served.events[-1], answer)
    assert not served.loop._later
    served.finish()


def test_what_goes_on_elsewhere_stands_in_no_line(llm: LLM) -> None:
    """A resumed request does not wait behind its key's others, and its bytes do not count.

    Its stream would be lost if it were refused.
    """
    served, text = Served(llm), "ab" * LONG
    for request, key, size in (
        (ask("new", text, key="k"), "k", len(text)),
        (ask("resumed", text, key="k", resume=[[5]]), "resumed", 0),
    ):
        slow = served.loop.read(encode(request))
        assert isinstance(slow, SlowMessage)
        assert slow.key == key
        assert slow.size == 0 if size == 0 else slow.size > size
