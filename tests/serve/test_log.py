"""Each line of the log is one JSON object, and contains no text of a conversation."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from paradecode.core.trace import Stats
from paradecode.serve.errors import ApiError
from paradecode.serve.log import WAITING, Log, Note, PlacesOnly
from paradecode.serve.wire import Done

SECRET = "the launch code is 0000"


def done() -> Done:
    stats = Stats(
        forwards=4, rows=40, generated=11, drafted=12, accepted=7, accepted_per_position=(7,),
        prompt_tokens=20, cached_tokens=16, queue_seconds=0.1234567891,
    )  # fmt: skip
    return Done(
        id="a", index=0, finish_reason="stop", method="prompt-lookup", stats=stats,
        time_to_first_token=0.75,
    )  # fmt: skip


def written(log: Log, stream: io.StringIO, **fields: Any) -> list[dict[str, Any]]:
    log.request(Note(id="req-1", **fields), "/v1/completions", 200, 1.5)
    log.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line_of_counts_and_times() -> None:
    stream = io.StringIO()
    (line,) = written(Log(stream), stream, model="smol", done=[done()])
    assert line["event"] == "request"
    assert (line["id"], line["status"], line["model"]) == ("req-1", 200, "smol")
    assert line["time"].endswith("+00:00")
    (output,) = line["outputs"]
    assert output["method"] == "prompt-lookup"
    assert (output["prompt_tokens"], output["completion_tokens"]) == (20, 11)
    assert output["time"]["queue"] == 0.123457
    assert "error" not in line
    assert "unlisted" not in line


def test_a_line_is_not_long_whatever_the_request() -> None:
    stream = io.StringIO()
    (line,) = written(Log(stream), stream, done=[done()] * 2048)
    assert (len(line["outputs"]), line["unlisted"]) == (64, 1984)


def test_what_was_said_is_not_written(capfd: pytest.CaptureFixture[str]) -> None:
    """The log has no text of answered, refused, failed or crashed requests."""
    pytest.importorskip("fastapi")
    from http_server import FakePool, running
    from http_server import settings as server_settings

    pool = FakePool(texts=[SECRET])
    with running(server_settings(log_requests=True), pool) as server:
        said = [{"role": "user", "content": SECRET}]
        assert SECRET in server.chat(messages=said).text
        assert SECRET in server.chat(messages=said, stream=True).text
        assert SECRET in server.complete(prompt=SECRET).text
        statuses = [
            server.chat(messages=said, temperature=SECRET).status_code,
            server.chat(messages=said, **{SECRET: 1}).status_code,
            server.chat(messages=said, speculative=SECRET).status_code,
            server.client.get(f"/{SECRET}").status_code,
        ]
        pool.crash = True
        statuses.append(server.chat(messages=said).status_code)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200] * 3 + statuses
    assert any(line["event"] == "crash" for line in lines)
    assert "launch" not in json.dumps(lines)


def test_fields_of_the_protocol_are_named() -> None:
    stream = io.StringIO()
    (line,) = written(Log(stream), stream, error=ApiError(400, "no", param="messages[0].content"))
    assert line["param"] == "messages[0].content"


def test_hostile_text_stays_inside_of_its_line() -> None:
    stream = io.StringIO()
    name = 'x"\n{"event":"forged"}\r\u2028\x1b[31m\ud800' + "y" * 9999
    lines = written(Log(stream), stream, model=name)
    assert len(lines) == 1
    assert stream.getvalue().isascii()
    assert len(lines[0]["model"]) == 256


def test_exceptions_are_logged_without_their_text() -> None:
    try:
        raise ValueError("the prompt was: attack at dawn")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "request r failed", (),
                                   (type(error), error, error.__traceback__))  # fmt: skip
    shown = PlacesOnly("%(message)s").format(record)
    assert "dawn" not in shown
    assert shown.startswith("request r failed\nValueError at test_log.py:")


def test_strangers_cannot_fill_the_log() -> None:
    stream, now = io.StringIO(), [0.0]
    log = Log(stream, lambda: now[0])
    for _ in range(500):
        log.stranger(Note(), "other", 401, 0.0)
    now[0] = 1.5
    log.stranger(Note(id="next"), "other", 401, 0.0)
    log.close()
    *first, told, last = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(first) == 10
    assert (told["event"], told["unlisted"]) == ("strangers", 490)
    assert last["id"] == "next"


def test_a_reader_who_stops_delays_nobody() -> None:
    """A reader who stops delays nobody. When the pipe is full, lost lines are counted."""
    reader, writer = os.pipe()
    with open(reader, encoding="ascii") as read, open(writer, "w", encoding="ascii") as write:
        log, sent, arrived, lost = Log(write), 4 * WAITING, 0, 0
        for _ in range(sent):
            log.write("request", more="x" * 200)
        assert log._lost > WAITING
        while arrived + lost + log._lost < sent:
            lost += json.loads(read.readline()).get("lost", 0)
            arrived += 1
        log.write("last")
        log.close()
        last = json.loads(read.readline())
    assert last["event"] == "last"
    assert arrived + lost + last["lost"] == sent


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a stream that is full")
def test_a_log_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", None)
    for stream in (open("/dev/full", "w", encoding="ascii"), closed, None):  # noqa: SIM115
        log = Log(stream)
        for _ in range(3):
            log.request(Note(), "other", 200, 0.0)
        log.close()
        assert not log._thread.is_alive()  # It has gone through all lines.
