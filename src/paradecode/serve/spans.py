"""Write an OpenTelemetry span for each request to a model, with its queue, prefill and decoding.

The extra ``otel`` is imported only if the environment names an exporter's endpoint. Names follow
OpenTelemetry's conventions for generative AI; no span holds a text of a prompt or an answer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from starlette.types import Scope

from paradecode import __version__
from paradecode.serve.log import MAX_OUTPUTS, Note
from paradecode.serve.wire import Done

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables that turn spans on."""

LAST_SPANS = 2.0
"""Seconds in which a stopping server sends its last spans."""

PARENT = (b"traceparent", b"tracestate")
"""Headers of the W3C's trace context."""

CHATS = ("chat", "messages", "responses")

_log = logging.getLogger(__name__)


class Spans:
    """Makes the spans of requests when they have ended.

    Args:
        provider: sends the spans. It must not block.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("paradecode", __version__)
        self._parents = TraceContextTextMapPropagator()

    @classmethod
    def from_environment(cls) -> Spans | None:
        """Return spans that go to the endpoint in OpenTelemetry's variables, or None without one.

        Sampling, headers and names follow the same standard's variables.
        """
        disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        if disabled or not any(os.environ.get(name) for name in ENDPOINTS):
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            _log.warning("no spans: install the extra, pip install -e '.[otel]'")
            return None
        named = "service.name" in OTELResourceDetector().detect().attributes
        resource = Resource.create({} if named else {"service.name": "paradecode"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def record(self, note: Note, route: str, status: int, began: int, scope: Scope) -> None:
        """Make the spans of a request that has ended.

        Args:
            route: the route's pattern in the application, not the path.
            status: HTTP status of the answer.
            began: nanoseconds of the clock at which the request arrived.
            scope: the request, which may name the parent of its span.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        carrier = {name.decode(): v.decode("latin-1") for name, v in scope["headers"]
                   if name in PARENT}  # fmt: skip
        parent = self._parents.extract(carrier)
        kind = "embeddings" if "embed" in route else "text_completion"
        kind = "chat" if any(word in route for word in CHATS) else kind
        root = self._tracer.start_span(
            f"{kind} {note.model}", parent, SpanKind.SERVER, start_time=began
        )
        if root.is_recording():
            root.set_attributes(
                {
                    "gen_ai.operation.name": kind, "gen_ai.provider.name": "paradecode",
                    "gen_ai.request.model": str(note.model), "http.route": route,
                    "http.response.status_code": status, "paradecode.request.id": note.id,
                    **_counts(note.done),
                }
            )  # fmt: skip
            if status >= 400:
                root.set_attribute("error.type", str(status))
            if status >= 500:
                root.set_status(Status(StatusCode.ERROR))
            within = set_span_in_context(root, parent)
            for done, ended in zip(note.done[:MAX_OUTPUTS], note.ended):
                stats = done.stats
                phases = {"queue": stats.queue_seconds, "prefill": stats.prefill_seconds,
                          "decode": stats.decode_seconds}  # fmt: skip
                at = ended - int(sum(phases.values()) * 1e9)
                for name, seconds in phases.items():
                    span = self._tracer.start_span(name, within, start_time=max(at, began))
                    own = _counts([done]) if name == "decode" else {}
                    span.set_attributes({"paradecode.output": done.index, **own})
                    at += int(seconds * 1e9)
                    span.end(max(at, began))
        root.end(time.time_ns())

    def close(self) -> None:
        """Send the spans that wait, if that is possible within :data:`LAST_SPANS` seconds."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(LAST_SPANS)


def _counts(outputs: list[Done]) -> dict[str, int | str | list[str]]:
    """Return the attributes of outputs that have ended: their tokens and forwards."""
    if not outputs:
        return {}
    own = [done.stats for done in outputs]
    # The outputs of one prompt share its tokens, so only the first one counts them.
    prompts = [done.stats for done in outputs if done.index == outputs[0].index]
    return {
        "gen_ai.response.finish_reasons": [done.finish_reason for done in outputs[:MAX_OUTPUTS]],
        "gen_ai.usage.input_tokens": sum(stats.prompt_tokens for stats in prompts),
        "gen_ai.usage.cache_read.input_tokens": sum(stats.cached_tokens for stats in prompts),
        "gen_ai.usage.output_tokens": sum(stats.generated for stats in own),
        "paradecode.method": outputs[0].method,
        "paradecode.forwards": sum(stats.forwards for stats in own),
        "paradecode.draft_tokens": sum(stats.drafted for stats in own),
        "paradecode.accepted_draft_tokens": sum(stats.accepted for stats in own),
    }
