"""Helpers that drive a worker's loop by hand, without a process."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from paradecode.llm import LLM
from paradecode.serve.lines import encode
from paradecode.serve.wire import Done, Event, Failure, Generate, OutputChunk, PromptInput, Request
from paradecode.serve.worker.loop import Loop
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.worker.slow import SlowMessage


class Served:
    """A worker's loop, and the events that it wrote."""

    def __init__(self, llm: LLM, **settings: Any) -> None:
        self.llm, self.events = llm, list[Event]()
        self.loop = Loop(llm, WorkerSettings(**settings), self._send)

    def _send(self, events: Iterable[Event]) -> Collection[str]:
        for event in events:
            json.loads(encode(event))  # Whatever is written must be a line.
            self.events.append(event)
        return []

    def give(self, *messages: Request | bytes) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else encode(message)
            read = self.loop.read(line)
            if read is None:
                continue
            self._send(self.loop.handle(read))
            if isinstance(read, SlowMessage):
                self._send(self.loop.handle(read.work()))

    def finish(self, steps: int = 5000) -> None:
        """Step until nothing is left to do.

        The page books must be right, and no page held at the end.
        """
        while self.llm.engine.busy:
            assert self.loop.step()
            self.llm.engine.check()
            steps -= 1
            assert steps > 0, "no progress"
        assert [pool.held for pool in self.llm.engine.pools.values()] == [0]
        assert not self.loop.jobs

    def run(self, *messages: Request | bytes) -> None:
        self.give(*messages)
        self.finish()

    def of(self, id: str, index: int = 0) -> tuple[list[OutputChunk], Done | Failure | None]:
        """Return the chunks of an output, and the event that ended it."""
        own = [event for event in self.events if getattr(event, "id", None) == id]
        chunks = [e for e in own if isinstance(e, OutputChunk) and e.index == index]
        ends = [
            e for e in own if isinstance(e, Failure) or (isinstance(e, Done) and e.index == index)
        ]
        assert len(ends) <= 1
        return chunks, ends[0] if ends else None

    def done(self, id: str, index: int = 0) -> Done:
        end = self.of(id, index)[1]
        assert isinstance(end, Done), end
        return end

    def failure(self, id: str) -> Failure:
        end = self.of(id)[1]
        assert isinstance(end, Failure), end
        return end

    def tokens(self, id: str, index: int = 0) -> list[int]:
        return [token for chunk in self.of(id, index)[0] for token in chunk.tokens]

    def text(self, id: str, index: int = 0) -> str:
        return "".join(chunk.text for chunk in self.of(id, index)[0])


def ask(id: str, prompt: str = "abcabcab", **rest: Any) -> Generate:
    """Make a request. Arguments that are no fields of ``Generate`` are sampling parameters."""
    own = {name: rest.pop(name) for name in [*rest] if name in Generate.__dataclass_fields__}
    return Generate(id=id, prompt=PromptInput(text=prompt), sampling=rest, **own)
