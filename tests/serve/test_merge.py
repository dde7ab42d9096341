"""Several streams of events are merged into one."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

import pytest

pytest.importorskip("pydantic")

from paradecode.serve.merge import merged
from paradecode.serve.wire import Accepted
from paradecode.serve.workers import Events


class Streams:
    """Streams of two events each, and a count of the open ones."""

    def __init__(self) -> None:
        self.begun = self.open = self.widest = 0

    async def one(self, number: int, fails: bool = False) -> Events:
        self.begun += 1
        self.open += 1
        self.widest = max(self.widest, self.open)
        try:
            for _ in range(2):
                await asyncio.sleep(0)
                yield Accepted(id=f"{number}", prompt_tokens=1)
            if fails:
                raise ValueError("broken")
        finally:
            self.open -= 1


@pytest.mark.parametrize("width", [1, 3, 9])
def test_so_many_are_read_at_the_same_time(width: int) -> None:
    async def test() -> None:
        streams = Streams()
        found: Counter[int] = Counter()
        async with aclosing(merged([streams.one(at) for at in range(7)], width)) as events:
            async for number, event in events:
                assert event.id == f"{number}"
                found[number] += 1
        assert found == dict.fromkeys(range(7), 2)
        assert (streams.widest, streams.open) == (min(width, 7), 0)

    asyncio.run(test())


def test_a_failure_ends_all_and_begins_none() -> None:
    streams = Streams()

    async def test() -> None:
        async with aclosing(merged([streams.one(at, at == 0) for at in range(7)], 2)) as events:
            async for _ in events:
                pass

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(test())
    assert streams.open == 0
    assert streams.begun < 7
