"""Metrics count the right things, have bounded labels, and include what the dashboard asks for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from paradecode.core.trace import Stats
from paradecode.serve.keys import KeyLimits
from paradecode.serve.limits import Account
from paradecode.serve.metrics import POSITIONS, Metrics
from paradecode.serve.wire import Accepted, Done, Failure, WorkerStats
from paradecode.serve.workers import Residence
from repository import ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "paradecode.json"


def done(
    method: str = "prompt-lookup(max_ngram=3)",
    diffusion_steps: int = 0,
    time_to_first_token: float | None = 0.75,
    **changes: Any,
) -> Done:
    found = Stats(
        forwards=4, rows=40, generated=11, drafts=3, drafted=12, accepted=7,
        accepted_per_position=(3, 2, 2), prompt_tokens=20, cached_tokens=16,
        queue_seconds=0.5, prefill_seconds=0.25, decode_seconds=1.0,
        target_seconds=0.9, other_model_seconds=0.1, decoder_seconds=0.2,
    )  # fmt: skip
    return Done(
        id="a", index=0, finish_reason="stop", method=method, stats=replace(found, **changes),
        diffusion_steps=diffusion_steps, time_to_first_token=time_to_first_token,
    )  # fmt: skip


def stats(**changes: Any) -> WorkerStats:
    found = WorkerStats(
        id="s", running=3, waiting=2, waiting_tokens=99, batch=64, pages=2048, held_pages=30,
        idle_pages=7, forwards=1000, steps=900, refused=1, memory_bytes=1 << 28, state_bytes=5,
    )  # fmt: skip
    return replace(found, **changes)


def values(
    metrics: Metrics, workers: dict[str, list[WorkerStats | None]] | None = None
) -> dict[str, float]:
    """Return every sample of the page, as ``name[label=value,...]`` without the prefix.

    Labels are sorted by name.
    """
    page = metrics.page(workers or {}, {"smol": 2}, {"smol": Residence("loaded", 3, 2, 99)})
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('paradecode:')}[{labels}]"] = sample.value
    return found


def test_an_output_is_counted_once_by_model_and_method() -> None:
    metrics = Metrics(["smol"])
    metrics.observe("smol", Accepted(id="a", prompt_tokens=20))
    metrics.observe("smol", done())
    found, own = values(metrics), "method=prompt-lookup,model=smol"
    for name, value in {
        f"spec_decode_num_drafts_total[{own}]": 3,
        f"spec_decode_num_draft_tokens_total[{own}]": 12,
        f"spec_decode_num_accepted_tokens_total[{own}]": 7,
        f"spec_decode_num_accepted_tokens_per_pos_total[{own},position=0]": 3,
        f"spec_decode_num_accepted_tokens_per_pos_total[{own},position=2]": 2,
        "prompt_tokens_total[model=smol]": 20,
        f"generation_tokens_total[{own}]": 11,
        "prefix_cache_queries_total[model=smol]": 20,
        "prefix_cache_hits_total[model=smol]": 16,
        f"request_success_total[finished_reason=stop,{own}]": 1,
        f"request_forwards_total[{own}]": 4,
        f"request_rows_total[{own}]": 40,
        f"request_phase_seconds_total[{own},phase=queue]": 0.5,
        f"request_time_seconds_total[{own},part=target]": 0.9,
        f"e2e_request_latency_seconds_sum[{own}]": 1.75,
        f"time_to_first_token_seconds_sum[{own}]": 0.75,
        f"request_time_per_output_token_seconds_sum[{own}]": 0.1,
        f"request_tokens_per_forward_sum[{own}]": 2.75,
        f"request_tokens_per_forward_bucket[le=2.5,{own}]": 0,
        f"request_tokens_per_forward_bucket[le=3.0,{own}]": 1,
        "worker_restarts_total[model=smol]": 2,
        "model_loads_total[model=smol]": 3,
        "model_unloads_total[model=smol]": 2,
        "model_counted_bytes[model=smol]": 99,
    }.items():
        assert found[name] == pytest.approx(value), name
    assert not any(name.startswith("diffusion") for name in found)
    metrics.observe("smol", done())
    assert values(metrics)[f"generation_tokens_total[{own}]"] == 22


def test_a_canvas_counts_its_steps() -> None:
    metrics = Metrics(["llada"])
    metrics.observe("llada", done(method="threshold(threshold=0.9)", diffusion_steps=5))
    found = values(metrics)
    assert found["diffusion_steps_total[method=threshold,model=llada]"] == 5
    assert found["diffusion_canvas_tokens_total[method=threshold,model=llada]"] == 11


def test_an_output_without_tokens_has_no_latencies() -> None:
    metrics = Metrics(["smol"])
    metrics.observe("smol", done(generated=0, forwards=0, time_to_first_token=None))
    found = values(metrics)
    own = "method=prompt-lookup,model=smol"
    assert found[f"e2e_request_latency_seconds_count[{own}]"] == 1
    for name in ("time_to_first_token_seconds", "request_tokens_per_forward"):
        assert f"{name}_count[{own}]" not in found


def test_no_label_is_the_clients_choice() -> None:
    """Requests with any models, methods and settings give few time series."""
    metrics = Metrics(["smol"])
    for number in range(50):
        metrics.observe(f"model-{number}", Failure(id="a", status=404, message="m"))
        metrics.observe("smol", done(method=f"prompt-lookup(max_ngram={1 + number % 9})"))
        metrics.observe("smol", done(method=f"suffix+prompt-lookup(max_ngram={1 + number % 9})"))
        metrics.observe("smol", done(method=f"nonsense-{number}"))
    metrics.observe("smol", done(accepted_per_position=(1,) * 500))
    found = values(metrics)
    labels = {m.group(1) for name in found if (m := re.search(r"method=([^,\]]*)", name))}
    assert labels == {"prompt-lookup", "fusion", "other"}
    assert found["request_failures_total[model=other,status=404]"] == 50
    own = "method=prompt-lookup,model=smol"
    deepest = f"spec_decode_num_accepted_tokens_per_pos_total[{own},position={POSITIONS - 1}]"
    assert found[deepest] == 500 - POSITIONS + 1
    assert f"spec_decode_num_accepted_tokens_per_pos_total[{own},position={POSITIONS}]" not in found


def test_counting_an_answer_reads_no_file_of_its_method() -> None:
    metrics = Metrics(["smol"])
    metrics.observe("smol", done(method="prompt-lookup(table='/gone.ngrams')"))
    own = "method=prompt-lookup,model=smol"
    assert values(metrics)[f"e2e_request_latency_seconds_count[{own}]"] == 1


def test_a_server_has_imported_the_methods_that_it_counts() -> None:
    code = (
        "import sys\n"
        "from paradecode.serve.app import create_app\n"
        "from paradecode.serve.metrics import Metrics\n"
        "from paradecode.serve.pool import Served\n"
        "from paradecode.serve.settings import ServerSettings\n"
        "from paradecode.serve.worker.settings import WorkerSettings\n"
        "create_app(ServerSettings(models=(Served('a', WorkerSettings()),)), None, Metrics([]))\n"
        "before = set(sys.modules)\n"
        "from paradecode.methods.specs import methods\n"
        "methods()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_workers_are_shown_as_they_are_now() -> None:
    metrics = Metrics(["smol"])
    metrics.answered("/v1/chat/completions", 200)
    found = values(metrics, {"smol": [stats(), stats(running=0, forwards=5)]})
    assert found["num_requests_running[model=smol,worker=0]"] == 3
    assert found["num_requests_running[model=smol,worker=1]"] == 0
    assert found["kv_pages_used[model=smol,worker=0]"] == 30
    assert found["kv_pages_cached[model=smol,worker=0]"] == 7
    assert found["state_bytes[model=smol,worker=0]"] == 5
    assert found["engine_forwards_total[model=smol,worker=1]"] == 5
    assert found["http_responses_total[route=/v1/chat/completions,status=200]"] == 1
    later = values(metrics, {"smol": [None, stats(forwards=6)]})  # The first one does not answer.
    assert later["engine_forwards_total[model=smol,worker=1]"] == 6
    assert "num_requests_running[model=smol,worker=0]" not in later


def everything() -> set[str]:
    metrics = Metrics(["smol"])
    metrics.observe("smol", Accepted(id="a", prompt_tokens=1))
    metrics.observe("smol", done(diffusion_steps=1))
    metrics.observe("smol", Failure(id="a", status=500, message="m"))
    metrics.answered("/health", 200)
    metrics.keys.accounts = [Account("alice", KeyLimits(), "")]
    return {name.partition("[")[0] for name in values(metrics, {"smol": [stats()]})}


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    asked += [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    named = {name for expr in asked for name in re.findall(r"paradecode:(\w+)", expr)}
    assert len(asked) > 30
    assert named <= everything(), sorted(named - everything())
    assert all(re.search(r"paradecode:\w+", expr) for expr in asked)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_metric_is_on_the_dashboard() -> None:
    text = DASHBOARD.read_text("utf-8")
    shown = set(re.findall(r"paradecode:(\w+)", text))
    endings = ("_created", "_count", "_sum")
    wanted = {name for name in everything() if not name.endswith(endings)}
    assert wanted - shown == set()
