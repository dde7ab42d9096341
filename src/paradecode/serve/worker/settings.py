"""What a worker is told on its first line."""

# ruff: noqa: RUF009 (the defaults are fields made by checked)
from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Limits
from paradecode.serve.checks import build, checked, mapping, maybe, string, whole


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker loads its model, and how much it takes on.

    Attributes:
        model, draft_model, decoder, profile, adapter, backend, dtype, device, threads,
            ranks: as :class:`paradecode.LLM` takes them. ``decoder`` is a spec text.
        limits: fields of :class:`paradecode.engine.engine.Limits`.
        queue_requests: outputs that may wait beside those that run; more are refused with 429.
        queue_tokens: prompt tokens that may wait; one request alone may have more.
        max_tokens: of requests that do not say, and for whom the context has more room.
    """

    model: str | None = checked(maybe(string(4096)), None)
    draft_model: str | None = checked(maybe(string(4096)), None)
    decoder: str = checked(string(4096), "auto")
    profile: str | None = checked(maybe(string(4096)), None)
    adapter: str | None = checked(maybe(string(4096)), None)
    backend: str = checked(string(64), "auto")
    dtype: str = checked(string(64), "auto")
    device: str = checked(string(64), "cpu")
    threads: int | None = checked(maybe(whole(1, 4097)), None)
    ranks: int = checked(whole(1, 65), 1)
    limits: dict[str, Any] | None = checked(maybe(mapping), None)
    queue_requests: int = checked(whole(0, 1 << 20), 256)
    queue_tokens: int = checked(whole(0, 1 << 40), 1 << 18)
    max_tokens: int = checked(whole(1, 1 << 20), 1024)

    def __post_init__(self) -> None:
        for entry in fields(self):
            entry.metadata["check"](entry.name, getattr(self, entry.name))
        self.engine_limits()

    def engine_limits(self) -> Limits:
        """Raises InvalidInput for a limit that is unknown or out of range."""
        known = [entry.name for entry in fields(Limits)]
        for name, value in (self.limits or {}).items():
            if name not in known:
                raise InvalidInput(f"limits.{name}", value, f"use one of {', '.join(known)}")
        return Limits(**(self.limits or {}))

    def line(self) -> bytes:
        """The settings as the worker's first line."""
        return json.dumps(vars(self), allow_nan=False).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> WorkerSettings:
        """What :meth:`line` wrote; raises InvalidInput naming what cannot be used."""
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput("settings", line[:60], "write one JSON object") from None
        settings: WorkerSettings = build(cls, body)
        return settings
