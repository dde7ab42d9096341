"""The buffer between a worker and its reader is bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from paradecode.serve.buffer import Bounds, Buffer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_events_come_in_order() -> None:
    async def test() -> None:
        buffer: Buffer[int] = Buffer()
        reader = asyncio.gather(*(buffer.get() for _ in range(3)))
        await asyncio.sleep(0)
        for value in range(3):
            assert buffer.put(value, 1)
        assert await reader == [0, 1, 2]

    asyncio.run(test())


def test_a_full_buffer_is_borne_for_a_while() -> None:
    async def test() -> None:
        clock = Clock()
        buffer: Buffer[int] = Buffer(Bounds(full=10, most=1000, patience=5.0), clock)
        assert buffer.put(1, 10)
        clock.now = 4.0
        assert buffer.put(2, 1)
        clock.now = 6.0
        assert not buffer.put(3, 1)
        assert [await buffer.get() for _ in range(3)] == [1, 2, 3]
        assert buffer.put(4, 20)  # It was read meanwhile: patience starts anew.
        clock.now = 10.0
        assert buffer.put(5, 20)

    asyncio.run(test())


def test_a_buffer_never_holds_more_than_its_bound() -> None:
    buffer: Buffer[int] = Buffer(Bounds(full=10, most=30, patience=5.0), Clock())
    assert all(buffer.put(value, 10) for value in range(3))
    assert not buffer.put(3, 10)
    buffer.replace(9)
    assert asyncio.run(buffer.get()) == 9


def test_an_event_larger_than_the_bound_is_no_fault_of_the_reader() -> None:
    buffer: Buffer[int] = Buffer(Bounds(full=10, most=30, patience=5.0), Clock())
    assert buffer.put(1, 29)
    assert buffer.put(2, 500)
    assert not buffer.put(3, 1)
