"""OpenTelemetry spans of requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("opentelemetry.sdk")

from http_server import FakePool, Running, running, settings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from paradecode.serve.spans import Spans
from paradecode.serve.wire import Failure
from patience import until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def server(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(Spans, "from_environment", lambda: Spans(provider))
    with running(settings(), FakePool()) as server:
        yield server


def spans(exporter: InMemorySpanExporter, count: int) -> list[Any]:
    """Return the finished spans once there are ``count``, which end in this order."""
    until(lambda: len(exporter.get_finished_spans()) >= count)
    found = [*exporter.get_finished_spans()]
    exporter.clear()
    assert len(found) == count
    return found


def test_a_request_has_a_span_with_its_phases(
    server: Running, exporter: InMemorySpanExporter
) -> None:
    """The span continues the client's trace, and its children follow one another."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"messages": [{"role": "user", "content": "secret"}], "n": 2, "stream": True}
    assert server.post("/v1/chat/completions", body, headers=headers).status_code == 200
    *children, root = spans(exporter, 7)
    assert (root.name, root.kind) == ("chat tiny", SpanKind.SERVER)
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == PARENT
    said = dict(root.attributes)
    assert said.pop("paradecode.request.id")
    assert said == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "paradecode",
        "gen_ai.request.model": "tiny", "http.route": "/v1/chat/completions",
        "http.response.status_code": 200, "gen_ai.response.finish_reasons": ("stop", "stop"),
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 8, "paradecode.method": "prompt-lookup(max_ngram=2)",
        "paradecode.forwards": 4, "paradecode.draft_tokens": 6,
        "paradecode.accepted_draft_tokens": 4,
    }  # fmt: skip
    assert [child.name for child in children] == ["queue", "prefill", "decode"] * 2
    assert {child.parent.span_id for child in children} == {root.context.span_id}
    for one, next in pairwise(children[:3]):
        assert root.start_time <= one.start_time <= one.end_time <= next.start_time
    assert children[2].end_time <= root.end_time
    assert children[2].attributes["paradecode.accepted_draft_tokens"] == 2
    assert not any("secret" in str(span.to_json()) for span in [*children, root])


def test_failures_have_a_span_and_strangers_have_none(
    server: Running, exporter: InMemorySpanExporter
) -> None:
    """A client's bad trace context is ignored, and unknown names and GETs make no spans."""
    server.pool.failure = Failure(id="x", status=503, message="the server is stopping")
    hostile = {"traceparent": "00-" + "z" * 3000, "tracestate": "a=b," * 200}
    assert server.post("/v1/completions", {"prompt": "a"}, headers=hostile).status_code == 503
    (root,) = spans(exporter, 1)
    assert root.parent is None
    assert root.status.status_code is StatusCode.ERROR
    assert root.attributes["error.type"] == "503"
    server.complete(model="unknown")
    server.client.get("/v1/models/tiny")
    server.post("/nowhere", {})
    server.pool.reset()
    server.complete(max_tokens=3)
    assert spans(exporter, 4)[-1].name == "text_completion tiny"


def test_nothing_is_imported_without_an_endpoint() -> None:
    code = (
        "import sys; from paradecode.serve.spans import Spans; assert Spans.from_environment() is "
        "None; assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    off = {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}
    subprocess.run([sys.executable, "-c", code], env=off, check=True)
