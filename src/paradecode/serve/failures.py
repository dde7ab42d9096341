"""What a caller is told of an error: his own mistakes in full, ours without our insides."""

from __future__ import annotations

import logging

from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.serve.wire import Failure

SHORTEST = 1.0
"""Seconds after which somebody who was sent away may come back."""

_log = logging.getLogger(__name__)


def failure(id: str, error: BaseException) -> Failure:
    """The event that ends request ``id`` because of ``error``."""
    if isinstance(error, InvalidInput):
        return _bad_request(id, str(error), error.field)
    if isinstance(error, CapacityError):
        return _bad_request(id, str(error), "max_tokens")
    _log.error("request %s failed", id, exc_info=error)
    return internal(id, f"the method or the model failed ({type(error).__name__})")


def internal(id: str, message: str) -> Failure:
    return Failure(id=id, status=500, type="server_error", message=message)


def busy(id: str, message: str, retry_after: float) -> Failure:
    """Too much is waiting already."""
    return Failure(
        id=id, status=429, type="rate_limit_error", message=message, retry_after=retry_after
    )


def overloaded(id: str, message: str, retry_after: float) -> Failure:
    """Nobody can take it now."""
    return Failure(
        id=id, status=503, type="overloaded_error", message=message, retry_after=retry_after
    )


def stopping(id: str) -> Failure:
    return overloaded(id, "the server is stopping", SHORTEST)


def _bad_request(id: str, message: str, param: str) -> Failure:
    return Failure(
        id=id, status=400, type="invalid_request_error", message=message[:4096], param=param[:256]
    )
