"""The settings of a worker, which are the first line of its input."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Limits
from paradecode.serve.validation import first_error

Path = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=64)]


class WorkerSettings(BaseModel):
    """The settings with which a worker loads its model, and limits on the work that it accepts.

    Attributes:
        model, draft_model, decoder, profile, adapter, chat_template, backend, dtype, device,
            threads, draft_threads, draft_device, draft_vocabulary, ranks: arguments of
            :class:`paradecode.LLM`. ``decoder`` is a spec text.
        limits: fields of :class:`paradecode.engine.engine.Limits`.
        queue_requests: the most outputs that may wait beside the running ones. Further ones are
            refused with 429.
        queue_tokens: the most prompt tokens that may wait. A single request may have more.
        max_tokens: the most tokens of an output, within the context, if its request sets no limit.
        python_constraints: whether requests may ask for the constraint ``python``.
        scorer: spec of the scorer for searches that name none; see
            :func:`paradecode.search.find_scorer`.
        costs: cost curves that an earlier worker of this server has measured, as in
            :class:`paradecode.serve.wire.Ready`.
        warm: whether the worker makes what constraints need before it is ready. Otherwise their
            first request makes it.

    Raises:
        InvalidInput: naming the setting that is unknown or out of range.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: Path | None = None
    draft_model: Path | None = None
    decoder: Path = "auto"
    profile: Path | None = None
    adapter: Path | None = None
    chat_template: Path | None = None
    backend: Name = "auto"
    dtype: Name = "auto"
    device: Name = "cpu"
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    draft_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    draft_device: Name | None = None
    draft_vocabulary: Path | None = None
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    limits: dict[str, Any] | None = None
    queue_requests: Annotated[int, Field(ge=0, lt=1 << 20)] = 256
    queue_tokens: Annotated[int, Field(ge=0, lt=1 << 40)] = 1 << 18
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 20)] = 1024
    python_constraints: bool = False
    scorer: Path | None = None
    costs: dict[str, dict[str, list[Any]]] = Field(default_factory=dict)
    warm: bool = True

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise first_error(given, error) from None
        self.engine_limits()

    def engine_limits(self) -> Limits:
        """Return the engine's limits.

        Raise InvalidInput for one that is unknown or out of range.
        """
        known = [entry.name for entry in fields(Limits)]
        for name, value in (self.limits or {}).items():
            if name not in known:
                raise InvalidInput(f"limits.{name}", value, f"use one of {', '.join(known)}")
        return Limits(**(self.limits or {}))

    def line(self) -> bytes:
        """Return the settings as the worker's first line."""
        return json.dumps(self.model_dump(), allow_nan=False).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> WorkerSettings:
        """Return the settings that :meth:`line` wrote. Raise InvalidInput naming a wrong field."""
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise InvalidInput("settings", line[:60], "write one JSON object")
        return cls(**body)
