"""Errors for clients: their own mistakes in full, the server's without details."""

from __future__ import annotations

import logging

from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.serve.wire import Failure

SHORTEST = 1.0
"""The shortest Retry-After, in seconds."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code of a prompt that the model has no room for."""

_log = logging.getLogger(__name__)


class TooLong(InvalidInput):
    """A prompt that is longer than the model's context.

    The words are those by which clients of both APIs tell this error from all others, in order to
    shorten the conversation.

    Args:
        size: such as "40031 tokens".
        context: the most tokens.
    """

    def __init__(self, size: str, context: int) -> None:
        super().__init__("prompt", size, f"give fewer than {context} tokens")
        self.args = (f"prompt is too long: {size} > {context} maximum (the model's maximum context "
                     f"length is {context} tokens)",)  # fmt: skip


def failure(id: str, error: BaseException) -> Failure:
    """The event that ends request ``id`` because of ``error``."""
    if isinstance(error, (InvalidInput, CapacityError)):
        param = error.field if isinstance(error, InvalidInput) else "max_tokens"
        code = TOO_LONG if isinstance(error, TooLong) else None
        return Failure(id=id, status=400, message=str(error)[:4096], param=param[:256], code=code)
    _log.error("request %s failed", id, exc_info=error)
    return Failure(
        id=id, status=500, message=f"the method or the model failed ({type(error).__name__})"
    )


def busy(id: str, message: str, retry_after: float = SHORTEST) -> Failure:
    """The failure of a request for which too many others wait."""
    return Failure(id=id, status=429, message=message, retry_after=retry_after)


def stopping(id: str) -> Failure:
    return Failure(id=id, status=503, message="the server is stopping", retry_after=SHORTEST)
