"""Prometheus metrics with vLLM's names, counted from what the workers report.

No label holds a text that a request can choose freely. Models are the served ones, methods are
those of the registry, and positions and statuses are bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from paradecode.core.errors import InvalidInput
from paradecode.methods.spec_text import name_and_settings, parts_of
from paradecode.methods.specs import find
from paradecode.serve.limits import Account
from paradecode.serve.wire import Accepted, Done, Failure, WorkerStats
from paradecode.serve.workers import Residence

CONTENT_TYPE = CONTENT_TYPE_LATEST
POSITIONS = 32
"""Number of draft positions with a counter of their own.

Deeper positions share the last counter.
"""

PHASES = ("queue", "prompt", "decode")
PARTS = ("target", "draft", "method", "other")
OWN = ("model", "method")
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
LONG = (2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
RATIOS = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32)

SUMMED = (
    # These are vLLM's names, so vLLM's dashboards work after the prefix is changed.
    ("drafts", "spec_decode_num_drafts", "Forwards that verified a draft."),
    ("drafted", "spec_decode_num_draft_tokens", "Draft tokens verified."),
    ("accepted", "spec_decode_num_accepted_tokens", "Draft tokens accepted."),
    ("generated", "generation_tokens", "Tokens generated."),
    ("forwards", "request_forwards", "Target forwards, summed over outputs."),
    ("rows", "request_rows", "Rows of those forwards."),
)
"""Field of an output's statistics, name of the counter that sums it, and help of this counter."""


class Metrics:
    """All metrics that the route `/metrics` shows.

    Args:
        models: public names of the served models. All other names are counted as ``other``.
    """

    def __init__(self, models: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(models)
        self._workers, self.keys = _Workers(), _Keys()
        self.registry.register(self._workers)
        self.registry.register(self.keys)
        count, histogram = self._counter, self._histogram
        self._summed = {field: count(name, said) for field, name, said in SUMMED}
        self._accepted_at = count(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft.",
            (*OWN, "position"),
        )
        self._prompt = count("prompt_tokens", "Prompt tokens of accepted requests.", ("model",))
        self._queried = count("prefix_cache_queries", "Prompt tokens looked up.", ("model",))
        self._hits = count("prefix_cache_hits", "Prompt tokens found in the cache.", ("model",))
        self._ended = count("request_success", "Outputs that ended.", (*OWN, "finished_reason"))
        self._failed = count("request_failures", "Requests that failed.", ("model", "status"))
        self._answers = count("http_responses", "HTTP responses.", ("route", "status"))
        self._steps = count("diffusion_steps", "Steps of diffusion canvases.")
        self._canvas = count("diffusion_canvas_tokens", "Tokens that those steps generated.")
        phases = "Time in the queue, to the first tokens, and after them."
        self._phases = count("request_phase_seconds", phases, (*OWN, "phase"))
        parts = "What outputs spent their time on."
        self._parts = count("request_time_seconds", parts, (*OWN, "part"))
        gained = "Tokens an output gained per target forward."
        self._per_forward = histogram("request_tokens_per_forward", gained, RATIOS)
        arrival = "From arrival at the worker."
        self._first = histogram("time_to_first_token_seconds", arrival, (*SHORT, *LONG))
        each = "From first to last token, per token."
        self._per_token = histogram("request_time_per_output_token_seconds", each, SHORT)
        whole = "From arrival at the worker to the end."
        self._whole = histogram("e2e_request_latency_seconds", whole, (*SHORT, *LONG))

    def observe(self, model: str, event: Accepted | Done | Failure) -> None:
        """Count an event of a request. The pool calls this."""
        model = model if model in self._models else "other"
        if isinstance(event, Accepted):
            self._prompt.labels(model).inc(event.prompt_tokens)
        elif isinstance(event, Failure):
            self._failed.labels(model, str(event.status)).inc()
        else:
            self._done(model, event)

    def answered(self, route: str, status: int) -> None:
        """Count an HTTP response. ``route`` is the application's pattern, not the path."""
        self._answers.labels(route, str(status)).inc()

    def page(
        self,
        stats: Mapping[str, Sequence[WorkerStats | None]],
        restarts: Mapping[str, int],
        residence: Mapping[str, Residence] = MappingProxyType({}),
    ) -> bytes:
        """Return the text of `/metrics`.

        Args:
            stats: model -> statistics of each of its workers; None for a worker that does not
                answer now.
            restarts: model -> how many times its workers were restarted.
            residence: model -> where it is.
        """
        self._workers.stats, self._workers.restarts = stats, restarts
        self._workers.residence = residence
        return generate_latest(self.registry)

    def page_of(self, account: Account) -> bytes:
        """Return the metrics of one key, which say nothing about other keys."""
        registry, keys = CollectorRegistry(), _Keys()
        keys.accounts = (account,)
        registry.register(keys)
        return generate_latest(registry)

    def _done(self, model: str, event: Done) -> None:
        stats, spent = event.stats, event.stats.seconds()
        own = model, _method(event.method)
        self._ended.labels(*own, event.finish_reason).inc()
        self._queried.labels(model).inc(stats.prompt_tokens)
        self._hits.labels(model).inc(stats.cached_tokens)
        for field, counter in self._summed.items():
            counter.labels(*own).inc(getattr(stats, field))
        for position, kept in enumerate(stats.accepted_per_position):
            self._accepted_at.labels(*own, str(min(position, POSITIONS - 1))).inc(kept)
        if event.diffusion_steps:
            self._steps.labels(*own).inc(event.diffusion_steps)
            self._canvas.labels(*own).inc(stats.generated)
        for phase in PHASES:
            self._phases.labels(*own, phase).inc(spent[phase])
        for part in PARTS:
            self._parts.labels(*own, part).inc(spent[part])
        self._whole.labels(*own).observe(sum(spent[phase] for phase in PHASES))
        if stats.forwards and stats.generated:
            self._per_forward.labels(*own).observe(stats.tokens_per_forward)
        if event.time_to_first_token is not None:
            self._first.labels(*own).observe(event.time_to_first_token)
        if stats.generated > 1:
            self._per_token.labels(*own).observe(spent["decode"] / (stats.generated - 1))

    def _counter(self, name: str, said: str, labels: Sequence[str] = OWN) -> Counter:
        return Counter(f"paradecode:{name}", said, labels, registry=self.registry)

    def _histogram(self, name: str, said: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"paradecode:{name}", said, OWN, registry=self.registry, buckets=buckets)


@lru_cache(maxsize=1024)
def _method(spec: str) -> str:
    """Return the label of a method's spec: its name without settings, which requests choose."""
    parts = parts_of(spec)
    try:  # Not built here, because building a method reads its files.
        names = [find(name_and_settings(part)[0]).name for part in parts]
    except InvalidInput:
        return "other"
    return "fusion" if len(names) > 1 else names[0]


GAUGES = (
    ("running", "num_requests_running", "Outputs in the batch."),
    ("waiting", "num_requests_waiting", "Outputs in the queue."),
    ("waiting_tokens", "num_tokens_waiting", "Prompt tokens in the queue."),
    ("batch", "num_requests_limit", "Most outputs that run at the same time."),
    ("pages", "kv_pages", "Pages of K/V memory."),
    ("held_pages", "kv_pages_used", "Pages that live outputs hold."),
    ("idle_pages", "kv_pages_cached", "Pages that only the prefix cache keeps."),
    ("state_bytes", "state_bytes", "Bytes of states of layers that keep one."),
    ("memory_bytes", "worker_memory_bytes", "Resident memory."),
)
COUNTERS = (
    ("forwards", "engine_forwards", "Packed forwards of all models."),
    ("steps", "engine_steps", "Steps of the engine loop."),
    ("refused", "requests_refused", "Requests refused because the queue was full."),
)


class _Keys(Collector):
    """Collects the usage of all keys, under the keys' names in the settings."""

    accounts: Collection[Account] = ()

    def collect(self) -> Iterator[Metric]:
        requests = _family(CounterMetricFamily, "key_requests", "Requests of a key.", "key")
        refused = _family(
            CounterMetricFamily, "key_refusals", "Refused by a limit.", "key", "limit"
        )
        tokens = _family(CounterMetricFamily, "key_tokens", "Of prompts, outputs.", "key", "kind")
        running = _family(GaugeMetricFamily, "key_outputs_running", "Let in.", "key")
        waiting = _family(GaugeMetricFamily, "key_outputs_waiting", "Not yet let in.", "key")
        for one in self.accounts:
            requests.add_metric([one.name], one.requests)
            tokens.add_metric([one.name, "prompt"], one.prompt_tokens)
            tokens.add_metric([one.name, "output"], one.output_tokens)
            running.add_metric([one.name], one.running)
            waiting.add_metric([one.name], one.waiting)
            for limit, times in one.refused.items():
                refused.add_metric([one.name, limit], times)
        yield from (requests, refused, tokens, running, waiting)


def _family(kind: Any, name: str, said: str, *labels: str) -> Any:
    return kind(f"paradecode:{name}", said, labels=labels)


class _Workers(Collector):
    """Collects what the workers do now, and what their engines have done since they started."""

    def __init__(self) -> None:
        self.stats: Mapping[str, Sequence[WorkerStats | None]] = {}
        self.restarts: Mapping[str, int] = {}
        self.residence: Mapping[str, Residence] = {}

    def collect(self) -> Iterator[Metric]:
        for kind, fields in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for field, name, said in fields:
                family = _family(kind, name, said, "model", "worker")
                for model, workers in self.stats.items():
                    for number, stats in enumerate(workers):
                        if stats is not None:
                            family.add_metric([model, str(number)], getattr(stats, field))
                yield family
        said = "Workers that were started again."
        restarted = _family(CounterMetricFamily, "worker_restarts", said, "model")
        for model, times in self.restarts.items():
            restarted.add_metric([model], times)
        yield restarted
        loads = _family(CounterMetricFamily, "model_loads", "Times that it was loaded.", "model")
        unloads = _family(CounterMetricFamily, "model_unloads", "And unloaded.", "model")
        said = "Resident memory of its workers; 0 while it is unloaded."
        resident = _family(GaugeMetricFamily, "model_resident_bytes", said, "model")
        said = "Weights and K/V memory, as --memory-limit counts them."
        counted = _family(GaugeMetricFamily, "model_counted_bytes", said, "model")
        for model, where in self.residence.items():
            loads.add_metric([model], where.loads)
            unloads.add_metric([model], where.unloads)
            held = [one.memory_bytes for one in self.stats.get(model, ()) if one is not None]
            resident.add_metric([model], sum(held))
            counted.add_metric([model], where.bytes)
        yield from (loads, unloads, resident, counted)
