"""The protocol of workers: JSON lines on stdin and stdout.

This file needs only the standard library, because every peer's environment imports it.

{"load": {...}}                                      -> {"seconds", "versions", "system"}
{"prompt_token_ids", "max_tokens", "stop_token_ids",
 "tenant"}                                           -> {"token_ids", "first_tokens",
                                                         "prefill_seconds", "decode_seconds",
                                                         "stopped"}, and Paradecode "counts"
Any failure                                          -> {"error"}

An engine may use what it learns from its answers only for the same tenant.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Settings = dict[str, Any]
Generate = Callable[[list[int], int, list[int]], "Reply"]
"""Maps (prompt_token_ids, max_tokens, stop_token_ids) to a reply."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Maps a request that is not a ``load`` to its answer."""

system: dict[str, str] = {}
"""The engine's report about itself while it is loaded.

``info`` has the instruction sets that it was compiled for, as llama.cpp writes them. Other entries
are versions of programs that are no package.
"""


@dataclass
class Reply:
    """One output; ``stopped`` says that the engine met a stop token, which it may have left out."""

    token_ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    first_tokens: int = 1
    stopped: bool = False


class Stopwatch:
    """Times one generation.

    Call ``first`` when the first tokens are there, and ``reply`` at the end.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: float | None = None
        self.first_tokens = 0

    def first(self, tokens: int = 1) -> None:
        if self._first is None:
            self._first = time.perf_counter()
            self.first_tokens = tokens

    def reply(self, token_ids: Iterable[int], stopped: bool = False) -> Reply:
        end = time.perf_counter()
        first = end if self._first is None else self._first
        return Reply(list(token_ids), first - self._start, end - first, self.first_tokens, stopped)


def serve(load: Callable[[Settings], Generate], packages: Sequence[str]) -> None:
    """Answer requests to generate, until stdin closes.

    Args:
        load: function that opens the engine.
        packages: distributions whose versions are reported.
    """

    def load_engine(settings: Settings) -> Answer:
        generate = load(settings)
        return lambda asked: asdict(
            generate(asked["prompt_token_ids"], asked["max_tokens"], asked["stop_token_ids"])
        )

    answer_requests(load_engine, packages)


def answer_requests(load: Callable[[Settings], Answer], packages: Sequence[str]) -> None:
    """Answer requests of any kind, until stdin closes; the arguments are those of :func:`serve`."""
    _die_with_parent()
    # Native libraries print to file descriptor 1. Send their output to the log, apart from the
    # answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer: Answer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                start = time.perf_counter()
                answer = load(request["load"])
                seconds = time.perf_counter() - start
                reply = {"seconds": seconds, "versions": _versions(packages), "system": system}
            else:
                assert answer is not None, "load comes first"
                reply = answer(request)
        except Exception as error:
            import traceback

            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _die_with_parent() -> None:
    """Ask Linux to kill this process if its parent is killed, so that no worker is left behind."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        return
