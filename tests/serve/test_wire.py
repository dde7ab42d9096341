"""A line between front and worker is read back as it was written, and no other line is accepted."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradecode.core.errors import InvalidInput
from paradecode.core.trace import Stats
from paradecode.serve.lines import MAX_LINE, WireError, decode, encode
from paradecode.serve.wire import (
    EVENTS,
    REQUESTS,
    Accepted,
    AskStats,
    Cancel,
    ConstraintSpec,
    DecodedText,
    Detokenize,
    Done,
    Drain,
    Failure,
    Generate,
    OutputChunk,
    PromptInput,
    Ready,
    Tokenize,
    TokenizedPrompt,
    WireCommit,
    WireScores,
)

SCORES = WireScores(sizes=[2], tokens=[3, 4], logprobs=[-0.5, -0.25], spelled=["\xe2", "a"])
MESSAGES = [
    Generate(
        id="a",
        prompt=PromptInput(
            messages=[{"role": "user", "content": "hi\u2028\ud800"}], tools=[{"a": [1]}],
            begun="So",
        ),
        sampling={"max_tokens": 3, "logit_bias": {"5": 1.5}},
        decoder={"method": "prompt-lookup", "max_ngram": 3},
        prediction="x",
        salt="tenant",
        priority=-4,
        deadline=2.5,
        constraint=ConstraintSpec(type="regex", value="a+"),
        provisional=True,
    ),
    Generate(id="b", prompt=PromptInput(tokens=[1, 2]), sampling={}),
    Cancel(id="a"), Tokenize(id="c", prompt=PromptInput(text="")), Detokenize(id="d", tokens=[]),
    AskStats(id="e"), Drain(),
]  # fmt: skip
NEWS = [
    Ready(model="m", families=["autoregressive"], context_length=8, vocab_size=9,
          decoder="greedy", draft_model=None, chat=False),
    Accepted(id="a", prompt_tokens=3),
    OutputChunk(id="a", index=1, text="é", tokens=[1, 2], forward=3,
          logprobs=SCORES, canvas=[None, "x"],
          commits=[WireCommit(2, 0, 1), WireCommit(3, 2, 0)]),
    Done(id="a", index=0, finish_reason="stop", method="greedy",
         stats=Stats(forwards=1, rows=2, generated=3, accepted_per_position=(1, 0),
                     queue_seconds=0.5), predicted=True, time_to_first_token=0.25),
    TokenizedPrompt(id="a", tokens=[1], texts=["x"]), DecodedText(id="a", text="x"),
    Failure(id="a", status=429, message="later", retry_after=2.0),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES + NEWS, ids=lambda m: type(m).__name__)
def test_what_is_written_is_read_back(message: Any) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line, REQUESTS if message in MESSAGES else EVENTS) == message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "line"),
        ({}, "kind"),
        ({"kind": "eval", "id": "a"}, "kind"),
        ({"kind": ["generate"]}, "kind"),
        ({"kind": "accepted", "id": "a", "prompt_tokens": 3}, "kind"),
        ({"kind": "cancel"}, "id"),
        ({"kind": "cancel", "id": ""}, "id"),
        ({"kind": "cancel", "id": "x" * 129}, "id"),
        ({"kind": "cancel", "id": 7}, "id"),
        ({"kind": "cancel", "id": "a", "force": True}, "force"),
        ({"kind": "detokenize", "id": "a", "tokens": [1, "2"]}, "tokens[1]"),
        ({"kind": "detokenize", "id": "a", "tokens": [True]}, "tokens[0]"),
        ({"kind": "detokenize", "id": "a", "tokens": [-1]}, "tokens[0]"),
        ({"kind": "detokenize", "id": "a", "tokens": [10**400]}, "tokens[0]"),
        ({"kind": "tokenize", "id": "a", "prompt": {}}, "prompt"),
        ({"kind": "tokenize", "id": "a", "prompt": {"text": "a", "tokens": [1]}}, "prompt"),
        ({"kind": "tokenize", "id": "a", "prompt": {"txt": "a"}}, "prompt.txt"),
        ({"kind": "tokenize", "id": "a", "prompt": "a"}, "prompt"),
        ({"kind": "tokenize", "id": "a", "prompt": {"messages": ["hi"]}}, "prompt.messages[0]"),
        ({"kind": "tokenize", "id": "a", "prompt": {"text": "a", "tools": []}}, "prompt.tools"),
        ({"kind": "tokenize", "id": "a", "prompt": {"text": "a", "begun": ""}}, "prompt.begun"),
        ({"kind": "generate", "id": "a", "prompt": {"text": "a"}}, "sampling"),
    ],
)
def test_what_is_wrong_is_named(body: Any, field: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(json.dumps(body).encode(), REQUESTS)
    assert caught.value.field == field
    named = body.get("id") if isinstance(body, dict) else None
    usable = isinstance(named, str) and 0 < len(named) <= 128
    assert caught.value.id == (named if usable else None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decoder", 3), ("decoder", ["greedy"]), ("prediction", 3), ("salt", None),
        ("salt", "x" * 257), ("priority", 1.5), ("priority", 1 << 40), ("deadline", -1),
        ("deadline", "soon"), ("provisional", 1), ("sampling", []),
        ("constraint", {"type": "poem"}), ("constraint", {"value": 1}),
    ],
)  # fmt: skip
def test_wrong_fields_of_a_request(field: str, value: Any) -> None:
    body = {"kind": "generate", "id": "a", "prompt": {"text": "a"}, "sampling": {}, field: value}
    with pytest.raises(WireError) as caught:
        decode(json.dumps(body).encode(), REQUESTS)
    assert caught.value.field.startswith(field)
    assert caught.value.id == "a"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("forwards", -1), ("rows", 1 << 62), ("decode_seconds", -0.5), ("generated", "many"),
        ("accepted_per_position", [1, -1]), ("unknown", 1),
    ],
)  # fmt: skip
def test_statistics_that_no_counter_could_take(field: str, value: Any) -> None:
    body = {"id": "a", "index": 0, "finish_reason": "stop", "method": "greedy"}
    for stats, fine in (({"forwards": 1}, True), ({"forwards": 1, field: value}, False)):
        line = json.dumps({"kind": "done", **body, "stats": stats}).encode()
        if fine:
            assert decode(line, EVENTS).stats.forwards == 1
            continue
        with pytest.raises(WireError) as caught:
            decode(line, EVENTS)
        assert caught.value.field.startswith("stats")
        assert caught.value.id == "a"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"{", b"\xff\xfe", b'{"kind": "drain"} {}', b"[" * 100_000,
        b'{"kind":' * 50_000, b'{"kind":"stats","id":"a","x":NaN}', b"9" * 5000,
        b'{"kind":"generate","id":"a","prompt":{"text":"a"},"sampling":{"top_p":1e999}}',
    ],
)  # fmt: skip
def test_broken_lines_are_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        decode(line, REQUESTS)


def test_the_first_of_many_errors_is_enough() -> None:
    """Only the first error of a line is reported.

    A line of 16 MiB has room for a million errors, and to collect them takes seconds and gigabytes.
    """
    chunk = {"kind": "chunk", "id": "a", "index": 0, "text": "", "tokens": [], "forward": 1}
    stats = {"accepted_per_position": ["x"] * 1000}
    done = {"kind": "done", "id": "a", "index": 0, "finish_reason": "stop", "method": "x"}
    for body, field in (
        ({**chunk, "logprobs": {**vars(SCORES), "sizes": [0] * 1000}}, "logprobs.sizes[0]"),
        ({**chunk, "canvas": [1] * 1000}, "canvas[0]"),
        ({**done, "stats": stats}, "stats.accepted_per_position[0]"),
        ({**chunk, **{f"unknown-{i}": 0 for i in range(1000)}}, "line"),
    ):
        with pytest.raises(WireError) as caught:
            decode(json.dumps(body).encode(), EVENTS)
        assert (caught.value.field, caught.value.id) == (field, "a")


def test_lines_are_bounded() -> None:
    with pytest.raises(WireError, match="bytes"):
        decode(b" " * (MAX_LINE + 1), REQUESTS)
    many = ["x" * (1 << 20)] * 20
    with pytest.raises(InvalidInput, match="bytes"):
        encode(Generate(id="a", prompt=PromptInput(text="a"), sampling={"stop": many}))


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_what_json_cannot_hold_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidInput):
        encode(Generate(id="a", prompt=PromptInput(text="a"), sampling={"temperature": value}))


def test_nested_without_end_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput):
        encode(Generate(id="a", prompt=PromptInput(text="a"), sampling={"stop": deep}))
    while deep:  # Taken apart by hand: the interpreter would recurse.
        deep = deep.pop()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(kind=st.sampled_from([*REQUESTS, *EVENTS]), rest=st.dictionaries(st.text(max_size=8), JSON))
def test_anything_else_is_refused_with_an_error(kind: str, rest: dict[str, Any]) -> None:
    line = json.dumps({"id": "a", **rest, "kind": kind}).encode()
    for kinds in (REQUESTS, EVENTS):
        with suppress(WireError):  # And with nothing else.
            message = decode(line, kinds)
            assert decode(encode(message), kinds) == message


def test_commits_are_all_of_their_chunk() -> None:
    chunk = OutputChunk(id="a", index=0, text="abc", tokens=[1, 2, 3], forward=6,
                        commits=[WireCommit(4, 1, 2), WireCommit(6, 2, 1)])  # fmt: skip
    assert [*chunk.parts()] == [(4, (1,), "ab"), (6, (2, 3), "c")]
    assert [*chunk.behind(2, 1).parts()] == [(4, (), "b"), (6, (3,), "c")]
    with pytest.raises(InvalidInput, match="they are of 2 tokens and 3 characters"):
        replace(chunk, tokens=[1, 2])
