"""The server follows its OpenAPI document: schemathesis sends allowed and forbidden requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from http_server import FakePool, Running, running, settings
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis.errors import Unsatisfiable

from paradecode.serve.app import create_app
from paradecode.serve.documents import document
from paradecode.serve.metrics import Metrics

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi

KEY = "a-key-for-schemathesis"
CHECKED = (
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
    openapi.unsupported_method,
)

APP = create_app(settings(keys=(KEY,)), FakePool(), Metrics([]))  # type: ignore[arg-type]
SCHEMA = schemathesis.openapi.from_dict(document(APP, keys=True))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(settings(keys=(KEY,)), FakePool()) as found:
        yield found


def test_the_document_names_every_route(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/models", "/v1/models/{name}", "/v1/chat/completions", "/v1/completions",
        "/v1/responses", "/v1/responses/{name}", "/v1/messages", "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/tokenize", "/detokenize", "/apply-template", "/health", "/metrics", "/version",
        "/infill", "/completion", "/props", "/slots",
        "/api/version", "/api/tags", "/api/ps", "/api/show", "/api/chat", "/api/generate",
        "/v1/blocks", "/v1/rank", "/rerank", "/v1/rerank", "/v2/rerank",
    }  # fmt: skip
    body = document["components"]["schemas"]["ChatRequest"]
    assert body["additionalProperties"] is True
    assert body["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


def check(server: Running, case: Any) -> None:
    response = case.call(base_url=server.url, headers={"authorization": f"Bearer {KEY}"})
    if response.status_code != 413:  # Too large to be read, whatever is in it.
        case.validate_response(response, checks=CHECKED)


def search(server: Running, operation: Any, count: int, **options: Any) -> None:
    """Send ``count`` requests that the document allows, and ``count`` that it forbids."""
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @examples(max_examples=count, suppress_health_check=list(HealthCheck), **options)
        @given(operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            check(server, case)

        with suppress(Unsatisfiable):  # A route without parameters cannot be asked wrongly.
            run()


@pytest.mark.first(6)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_a_few_examples(server: Running, operation: Any) -> None:
    search(server, operation, 6, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_many_examples(server: Running, operation: Any) -> None:
    search(server, operation, 300)
