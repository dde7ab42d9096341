"""Errors of the API in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.wire import TYPES, Failure

NAMES = {"decoder": "speculative"}
"""Name of a field in the library -> its name in the HTTP API."""

PHRASES = {404: "there is no such route", 405: "this route does not know the method"}


class ApiError(Exception):
    """An error that is sent to the client.

    Args:
        status: HTTP status.
        param: dotted name of the field that is wrong.
        code: a word by which programs tell the error; None if the type is enough.
        retry_after: seconds after which the request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = TYPES.get(status, "invalid_request_error")
        self.retry_after, self.headers = retry_after, headers or {}

    @classmethod
    def of(cls, failure: Failure, names: Mapping[str, str] = NAMES) -> ApiError:
        """Return the error for a failure that a worker reported.

        Args:
            names: the worker's name of a field, or its first component -> the client's name of the
                field.
        """
        param, message = failure.param, failure.message
        own = next((own for own in names if param and f"{param}.".startswith(f"{own}.")), None)
        if own is not None and param is not None:
            if message.startswith((f"{own}:", f"{own}.")):  # Clients match whole sentences.
                message = names[own] + message.removeprefix(own)
            param = names[own] + param.removeprefix(own)
        return cls(
            failure.status, message, param=param, code=failure.code,
            retry_after=failure.retry_after,
        )  # fmt: skip

    @property
    def body(self) -> dict[str, Any]:
        inner = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"type": "error", "error": inner}  # Anthropic's clients read this type.

    def response(self, path: str = "") -> Response:
        """Return the answer to a request for a path. Ollama's routes have Ollama's form."""
        headers = dict(self.headers)
        if self.status in (429, 503):
            wait = self.retry_after or 1.0
            headers["retry-after"] = str(max(1, math.ceil(wait)))
            headers["retry-after-ms"] = str(math.ceil(wait * 1000))  # For OpenAI's clients.
        told = {"error": self.message} if path.startswith("/api/") else self.body
        return JSONResponse(told, self.status, headers)


def wrong(param: str, fix: str, code: str | None = None) -> ApiError:
    """Return the error 400 for a field whose value cannot be used."""
    return ApiError(400, f"{param}: {fix}", param=param, code=code)


async def answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.state.note.error = error
    return error.response(request.scope["path"])


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an error that the router raised for an unknown route or method."""
    assert isinstance(error, HTTPException)
    message = PHRASES.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return await answer_api_error(request, ApiError(error.status_code, message, headers=headers))
