"""Sends one streamed request to a server, and times the answer.

The parser of aiohttp (extra ``load``) is written in C, because a load generator on the server's
machine must not take the server's processor time.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.prompts import Conversation
from paradecode_lab.measure.results import Record, StreamedAnswer
from paradecode_lab.measure.suites.load.plan import Endpoint, LoadPlan

LINE = 1 << 22
"""The most bytes of one server-sent event."""

DETAIL = 200


class BadAnswer(Exception):
    """The server's answer is not a complete stream; the message becomes the record's ``error``."""


def open_session(plan: LoadPlan, key: str | None) -> aiohttp.ClientSession:
    """Open a session without a limit on connections, because the load decides their number.

    Each request opens a connection. Servers close idle connections at any time, and a request on a
    closed connection would count as a failure of the server.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=plan.timeout),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        read_bufsize=LINE // 2,
        trust_env=False,  # The time of a proxy would be measured as well.
    )


async def first_model(session: aiohttp.ClientSession, endpoint: Endpoint) -> str:
    """Return the first model that a server lists.

    Raises:
        InvalidInput: the server does not answer, or lists no model.
    """
    option = f"--endpoint {endpoint.name}"
    try:
        async with session.get(f"{endpoint.url}/models") as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise InvalidInput(option, endpoint.url, f"start the server first ({error})") from None
    if status != 200:
        fix = f"it answers {status} to /models; check the URL and the key"
        raise InvalidInput(option, endpoint.url, fix)
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise InvalidInput(option, endpoint.url, "it lists no model; name one with --model")
    return name


async def ask_once(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    ask: Conversation,
    plan: LoadPlan,
    load: str,
    began: float,
    due: float | None = None,
) -> Record:
    """Send a request, read the stream to its end, and return the times. The record holds any error.

    Args:
        load: see :class:`StreamedAnswer`.
        began: ``time.perf_counter()`` when the round began.
        due: seconds after ``began`` at which the request should have been sent; None means now.
    """
    sent = time.perf_counter() - began
    start = sent if due is None else due
    answer = StreamedAnswer(load, start, max(0.0, sent - start))
    path = "chat/completions" if plan.api == "chat" else "completions"
    error = text = ""
    try:
        async with session.post(
            f"{endpoint.url}/{path}", json=request_body(endpoint, ask, plan)
        ) as response:
            if response.status != 200:
                detail = (await response.content.read(DETAIL)).decode("utf-8", "replace")
                raise BadAnswer(f"http {response.status}: {' '.join(detail.split())}")
            text = await _read(response, answer, began + start, plan)
    except BadAnswer as bad:
        error = str(bad)[:DETAIL]
    except asyncio.TimeoutError:
        error = f"timeout: {plan.timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as bad:
        error = f"connection: {type(bad).__name__} {bad}"[:DETAIL]
    answer.end = time.perf_counter() - began - start
    return Record(endpoint.name, ask.id, 0, error=error, text=text, streamed=answer)


def request_body(endpoint: Endpoint, ask: Conversation, plan: LoadPlan) -> dict[str, Any]:
    """Build the JSON object of a request."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        **endpoint.body,
    }
    if plan.count == "usage":
        body["stream_options"] = {"include_usage": True}
    if plan.api == "completions":
        return {**body, "prompt": ask.turns[0]}
    system = [{"role": "system", "content": ask.system}] if ask.system else []
    return {**body, "messages": [*system, {"role": "user", "content": ask.turns[0]}]}


async def _read(
    response: aiohttp.ClientResponse, answer: StreamedAnswer, zero: float, plan: LoadPlan
) -> str:
    """Read the server-sent events up to ``[DONE]``, and return their text.

    ``answer`` gets the times.
    """
    pieces: list[str] = []
    async for line in response.content:
        now = time.perf_counter() - zero
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        text = _event(data, answer)
        if text:
            if answer.last is None:
                answer.first = now
            else:
                answer.longest_gap = max(answer.longest_gap, now - answer.last)
            answer.last = now
            answer.chunks += 1
            pieces.append(text)
    else:
        if not answer.finish_reason:
            raise BadAnswer("stream: it ended without a finish_reason")
    if plan.count == "usage" and answer.tokens is None:
        raise BadAnswer("usage: the server does not count its tokens; use --count tokenizer")
    return "".join(pieces)


def _event(data: bytes, answer: StreamedAnswer) -> str:
    """Return the text of an event; ``answer`` gets its token count and finish reason."""
    try:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise TypeError
        if event.get("error"):
            raise BadAnswer(f"server: {json.dumps(event['error'])}")
        if event.get("usage"):
            answer.tokens = int(event["usage"]["completion_tokens"])
        if not event.get("choices"):
            return ""
        choice = event["choices"][0]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        found = delta.get("content") or delta.get("reasoning_content") or choice.get("text") or ""
        if not isinstance(found, str):
            raise TypeError
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadAnswer("stream: an event that is not OpenAI's") from None
