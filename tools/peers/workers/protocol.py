"""How a worker talks: JSON lines on stdin and stdout. Standard library only: every peer's own
environment imports this file.

{"load": {...}}                                      -> {"seconds", "versions", "system"}
{"prompt_token_ids", "max_tokens", "stop_token_ids",
 "tenant"}                                           -> {"token_ids", "first_tokens",
                                                         "prefill_seconds", "decode_seconds",
                                                         "stopped"}, and Paradecode "counts"
Whatever goes wrong                                  -> {"error"}

What an engine learns from its answers it may use for the same tenant only.
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
"""(prompt_token_ids, max_tokens, stop_token_ids) -> Reply."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""A request that is not a ``load`` -> what is answered."""

system: dict[str, str] = {}
"""What an engine says of itself while it is loaded: ``info`` (the instruction sets that it was
compiled for, as llama.cpp writes them) and versions of what is no package."""


@dataclass
class Reply:
    """One output. ``stopped``: the engine met a stop token (which it may have left out)."""

    token_ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    first_tokens: int = 1
    stopped: bool = False


class Stopwatch:
    """Times of one generation: call ``first`` when the first tokens are there."""

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
    """Generate until stdin closes.

    Args:
        load: opens the engine.
        packages: distributions whose versions are reported.
    """

    def load_engine(settings: Settings) -> Answer:
        generate = load(settings)
        return lambda asked: asdict(
            generate(asked["prompt_token_ids"], asked["max_tokens"], asked["stop_token_ids"])
        )

    answer_requests(load_engine, packages)


def answer_requests(load: Callable[[Settings], Answer], packages: Sequence[str]) -> None:
    """The same for requests of any kind."""
    _die_with_parent()
    # Native libraries print to file descriptor 1: give them the log, keep the answers apart.
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
    """A harness that is killed must not leave workers behind (Linux)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        return
