"""A reader sees all events of a request at a worker, whenever it begins to read."""

from __future__ import annotations

import asyncio

from http_server import done

from paradecode.serve import wire
from paradecode.serve.call import WorkerCall


def question(n: int = 1) -> wire.Generate:
    return wire.Generate(id="a", prompt="x", sampling={"n": n, "max_tokens": 1})


async def read(call: WorkerCall) -> list[wire.OutputEvent]:
    return [event async for event in call.events()]


def test_what_came_before_anybody_read_is_read() -> None:
    """Events that came before the first reader are kept for it, also of a complete answer."""

    async def go() -> None:
        call = WorkerCall(question(2))
        sent: list[wire.Event] = [
            wire.Accepted(id="a", prompt_tokens=3), done("a", 0), done("a", 1),
        ]  # fmt: skip
        for event in sent:
            assert call.receive(event, 1)
        assert await read(call) == sent

    asyncio.run(go())


def test_outputs_that_ended_elsewhere_are_not_waited_for() -> None:
    async def go() -> None:
        assert await read(WorkerCall(question(2), None, True, {0, 1})) == []

    asyncio.run(go())
