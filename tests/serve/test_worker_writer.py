"""No answer is too large for the worker. An event that does not fit into a line fails alone."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from looping import Served, ask

from paradecode.llm import LLM
from paradecode.serve.lines import MAX_LINE, LineTooLong, decode, encode
from paradecode.serve.wire import (
    EVENTS,
    Accepted,
    DecodedText,
    Detokenize,
    Event,
    Failure,
    OutputChunk,
    PromptInput,
    Tokenize,
    TokenizedPrompt,
)
from paradecode.serve.worker import prepare, writer
from paradecode.serve.worker.writer import EventWriter


def written(*events: Event) -> tuple[list[Any], set[str]]:
    """Return the events that a reader finds, and the ids of requests that have failed."""
    pipe = BytesIO()
    failed = EventWriter(pipe)(events)  # type: ignore[arg-type]  # It takes all at once, too.
    return [decode(line, EVENTS) for line in pipe.getvalue().splitlines(keepends=True)], failed


def test_an_event_that_is_too_long_fails_alone() -> None:
    first, last = Accepted(id="a", prompt_tokens=1), Accepted(id="c", prompt_tokens=1)
    (before, between, after), failed = written(
        first, DecodedText(id="b", text="x" * MAX_LINE), last
    )
    assert (before, after, failed) == (first, last, {"b"})
    assert (between.id, between.status) == ("b", 400)
    assert f"{MAX_LINE}" in between.message
    assert "ask for less" in between.message


def test_numbers_that_no_line_can_hold_are_the_servers_fault() -> None:
    chunk = OutputChunk(
        id="a", index=0, text="", tokens=[], forward=0, embedding=[float("nan")]
    )  # fmt: skip
    (event,), failed = written(chunk)
    assert (event.id, event.status, failed) == ("a", 500, {"a"})


class Piped(Served):
    """A loop whose events are written to a pipe and read from it."""

    def _send(self, events: Any) -> set[str]:
        read, failed = written(*events)
        self.events += read
        return failed


def test_a_request_whose_answer_is_too_long_ends(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(event: Any) -> bytes:
        if isinstance(event, OutputChunk) and event.id == "wide":
            raise LineTooLong("request", "9 bytes", "give less")
        return encode(event)

    monkeypatch.setattr(writer, "encode", narrow)
    served = Piped(llm)
    served.give(ask("wide", n=2, max_tokens=400), ask("slim", max_tokens=9, ignore_eos=True))
    assert served.loop.step()
    assert served.failure("wide").status == 400
    assert [*served.loop.jobs] == ["slim"]  # The engine does not go on with the other.
    served.finish()
    assert len(served.tokens("slim")) == 9


def test_texts_of_tokens_are_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_BYTES", 8)
    served = Served(llm)
    for text, fits in (("abcdabcd", True), ("abcdabcda", False)):
        served.give(Tokenize(id="t", prompt=PromptInput(text=text)))
        served.give(Detokenize(id="d", tokens=llm.encode(text)))
        *_, tokens, said = served.events
        if fits:
            assert isinstance(tokens, TokenizedPrompt)
            assert isinstance(said, DecodedText)
            continue
        for event, field in ((tokens, "prompt"), (said, "tokens")):
            assert isinstance(event, Failure)
            assert (event.status, event.param) == (400, field)
            assert "'9 bytes of text'" in event.message
            assert "at most 8 bytes" in event.message


def test_tokens_of_a_text_are_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_TOKENS", 3)
    served = Served(llm)
    served.give(Tokenize(id="t", prompt=PromptInput(text="abcd")))
    (event,) = served.events
    assert isinstance(event, Failure)
    assert (event.status, event.param) == (400, "prompt")
    assert "'4 tokens'" in event.message


def test_what_the_bounds_allow_is_a_line() -> None:
    """The largest answer fits into a line.

    A byte takes at most six characters of JSON, and an id takes ten digits and a comma.
    """
    texts = 6 * prepare.MOST_BYTES + len('"",') * prepare.MOST_TOKENS
    assert texts + 11 * prepare.MOST_TOKENS + 1000 < MAX_LINE
