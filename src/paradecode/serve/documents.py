"""Make the OpenAPI document from the classes that check requests and describe answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from paradecode.serve.protocol.answers import Error
from paradecode.serve.protocol.base import Body

REFUSALS = {
    400: "The request cannot be served as it is.",
    401: "The key is missing or wrong.",
    403: "The key may not see this.",
    404: "There is no such model or route.",
    408: "The body took too long to arrive.",
    411: "The body does not say its length.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The constraint cannot be followed.",
    429: "The queue is full.",
    431: "The path and the headers are too large.",
    500: "The server failed.",
    503: "The server is overloaded or stopping.",
}

EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""Schema of one event of a stream.

Before OpenAPI 3.2, the schema of a stream describes its events.
"""

_bodies: set[type[BaseModel]] = set()


def posts(
    body: type[Body],
    answer: type[BaseModel],
    streams: type[BaseModel] | bool | str = False,
    errors: type[BaseModel] = Error,
) -> dict[str, Any]:
    """Return the keyword arguments for a route that reads and checks a JSON body itself.

    Args:
        streams: whether the route may answer by a stream. A class describes the data of the
            stream's events, and a text is the media type of lines of JSON.
        errors: what describes an error.
    """
    _bodies.add(body)
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    found: dict[str, Any] = {"description": "The answer."}
    if isinstance(streams, str):
        found["content"] = {streams: {"schema": {"type": "string"}}}
    elif streams:
        found["content"] = {"text/event-stream": {"schema": _event(streams)}}
    return {
        "response_model": answer,
        "responses": {200: found, **_refusals(*REFUSALS, model=errors)},
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    }


def _event(data: type[BaseModel] | bool) -> dict[str, Any]:
    if isinstance(data, bool):
        return EVENT
    _bodies.add(data)
    shown = {"$ref": f"#/components/schemas/{data.__name__}"}
    said = {"contentMediaType": "application/json", "contentSchema": shown}
    data_schema = {"type": "string", "anyOf": [said, {"const": "[DONE]"}]}
    return {**EVENT, "properties": {"event": {"type": "string"}, "data": data_schema}}


def gets(answer: Any, *statuses: int, errors: type[BaseModel] = Error) -> dict[str, Any]:
    """Return the keyword arguments for a route without a body.

    If ``answer`` is None, the route returns plain text.
    """
    found: dict[str, Any] = {"description": "The answer."}
    if answer is None:
        found["content"] = {"text/plain": {"schema": {"type": "string"}}}
    responses = {200: found, **_refusals(401, 431, 500, *statuses, model=errors)}
    return {"response_model": answer, "responses": responses}


def document(app: FastAPI, keys: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the application.

    Args:
        keys: whether clients have to send a key.
    """
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, own = models_json_schema(
        [(body, "validation") for body in sorted(_bodies, key=lambda body: body.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    components = made.setdefault("components", {})
    components.setdefault("schemas", {}).update(own["$defs"])
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def _refusals(*statuses: int, model: type[BaseModel] = Error) -> dict[int | str, Any]:
    return {status: {"model": model, "description": REFUSALS[status]} for status in statuses}
