"""Base classes of messages, and the bounds on what their fields may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

MAX_ID = 128
MAX_TEXT = 1 << 23
MAX_LIST = 1 << 20
WORKER = "worker"
"""The id of a failure of the worker itself, if it could not load its model, or if it stops."""

LEAST_LOGPROB = -9999.0
"""Number that replaces minus infinity, which JSON cannot write."""

# Types are strict: a text is no number, and neither is a boolean. The check of a list stops at its
# first bad entry.
Name = Annotated[str, Field(strict=True, max_length=4096)]
Short = Annotated[str, Field(strict=True, max_length=1 << 16)]
Text = Annotated[str, Field(strict=True, max_length=MAX_TEXT)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
Index = Annotated[int, Field(strict=True, ge=0, lt=1 << 16)]
Token = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Size = Annotated[int, Field(strict=True, ge=1, le=65)]
Logprob = Annotated[float, Field(strict=True, ge=LEAST_LOGPROB, le=1.0)]
Logprobs = Annotated[list[Logprob], Field(max_length=1 << 10, fail_fast=True)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e9)]
Flag = Annotated[bool, Field(strict=True)]
Tokens = Annotated[list[Token], Field(max_length=MAX_LIST, fail_fast=True)]
Texts = Annotated[list[Short], Field(max_length=MAX_LIST, fail_fast=True)]
Messages = Annotated[list[dict[str, Any]], Field(max_length=1 << 12, fail_fast=True)]
Tools = Annotated[list[dict[str, Any]], Field(max_length=1 << 10, fail_fast=True)]
Embedding = Annotated[
    list[Annotated[float, Field(strict=True)]], Field(max_length=1 << 16, fail_fast=True)
]
Hashes = Annotated[list[Name], Field(max_length=MAX_LIST, fail_fast=True)]
Canvas = Annotated[list[Short | None], Field(max_length=MAX_LIST, fail_fast=True)]


@dataclass(frozen=True, kw_only=True)
class WireMessage:
    """Base class of messages, which refuse unknown fields and numbers that are not finite."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True)
class OneRequest(WireMessage):
    """A message about one request, which ``id`` names.

    Attributes:
        id: id that the sender of the request has chosen, unique among its live requests.
    """

    id: Annotated[str, Field(strict=True, min_length=1, max_length=MAX_ID)]
