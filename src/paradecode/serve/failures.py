"""Errors for clients: a client's own mistakes in full, the server's errors without details."""

from __future__ import annotations

import logging

from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.serve.wire import Failure

SHORTEST = 1.0
"""The shortest time that the header Retry-After names, in seconds."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's error code for a prompt that is longer than the model's context."""

_log = logging.getLogger(__name__)


class TooLong(InvalidInput):
    """A prompt that is longer than the model's context.

    Clients of OpenAI's and Anthropic's APIs recognize this error by its message, and then shorten
    the conversation.

    Args:
        size: the prompt's length with its unit, such as "40031 tokens".
        context: the model's context length in tokens.
    """

    def __init__(self, size: str, context: int) -> None:
        super().__init__("prompt", size, f"give fewer than {context} tokens")
        self.args = (f"prompt is too long: {size} > {context} maximum (the model's maximum context "
                     f"length is {context} tokens)",)  # fmt: skip


def failure(id: str, error: BaseException) -> Failure:
    """Return the event that ends request ``id`` because of ``error``."""
    if isinstance(error, (InvalidInput, CapacityError)):
        param = error.field if isinstance(error, InvalidInput) else "max_tokens"
        code = TOO_LONG if isinstance(error, TooLong) else None
        return Failure(id=id, status=400, message=str(error)[:4096], param=param[:256], code=code)
    _log.error("request %s failed", id, exc_info=error)
    return Failure(
        id=id, status=500, message=f"the method or the model failed ({type(error).__name__})"
    )


def busy(id: str, message: str, retry_after: float = SHORTEST) -> Failure:
    """Return the failure of a request that is refused because too many others wait."""
    return Failure(id=id, status=429, message=message, retry_after=retry_after)


def stopping(id: str) -> Failure:
    return Failure(id=id, status=503, message="the server is stopping", retry_after=SHORTEST)
