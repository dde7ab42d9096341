"""A worker that dies, or stops answering, at the place that a request's id names.

A request with the id "cut die 50 die 200" kills its worker when 50 tokens of the first output are
written, and the next worker when 200 tokens are. With "hang", the worker stops itself. No worker
writes more than that, however late its reader is.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

from paradecode.serve.wire import Event, OutputChunk
from paradecode.serve.worker import __main__ as worker
from paradecode.serve.worker.loop import Loop
from paradecode.serve.worker.writer import EventWriter

END = {"die": signal.SIGKILL, "hang": signal.SIGSTOP}
written: dict[str, int] = {}
"""Id of a request -> tokens of its first output, which earlier workers may have written."""


class MortalLoop(Loop):
    def read(self, line: bytes) -> Any:
        body = json.loads(line)
        if body["kind"] == "generate":
            written[body["id"]] = len((body.get("resume") or [[]])[0] or ())
        return super().read(line)


class MortalWriter(EventWriter):
    def __call__(self, events: Iterable[Event]) -> set[str]:
        due = []
        for event in (events := [*events]):
            if isinstance(event, OutputChunk) and event.index == 0:
                before = written[event.id]
                written[event.id] += len(event.tokens)
                due += [
                    END[end]
                    for end, at in re.findall(r"(die|hang) (\d+)", event.id)
                    if before < int(at) <= written[event.id]
                ]
        failed = super().__call__(events)
        for signal_ in due:
            os.kill(os.getpid(), signal_)
        return failed


if __name__ == "__main__":
    worker.Loop, worker.EventWriter = MortalLoop, MortalWriter  # type: ignore[misc]
    sys.exit(worker.main())
