"""Two replicas on a Ray cluster of this machine: outputs, routing, a killed replica, an update."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve")
pytest.importorskip("uvicorn")
if not Path("/proc/self/stat").exists():
    pytest.skip("needs /proc to find the replicas", allow_module_level=True)

import httpx
from ray_serving import Server, settings_of, streamed, workers

from paradecode import LLM
from paradecode.core.errors import InvalidInput
from paradecode.serve.pool import Served
from paradecode.serve.ray.deploy import Scaling, cluster, deploy
from patience import until

pytestmark = pytest.mark.slow

SCALING = Scaling(replicas=2)
PROMPTS = [letter * 40 + "abcabc" for letter in "abcdefgh"]


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[Server]:
    settings = settings_of(folder)
    with cluster(cpus=2):
        deploy(settings, SCALING)
        yield Server(settings)
    until(lambda: not workers())


def test_outputs_equal_the_librarys(server: Server, folder: str) -> None:
    settings: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 3}
    with LLM(folder, decoder=None, threads=1) as llm:
        wanted = [out.text for out in llm.complete(PROMPTS, **settings)]

    def ask(prompt: str) -> str:
        answer = server.complete(prompt, **settings)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, PROMPTS)) == wanted


def test_the_whole_api_is_there(server: Server) -> None:
    assert httpx.get(f"{server.client.base_url}/v1/models").status_code == 401
    assert server.client.get("/health").json() == {"status": "ok"}
    assert [m["id"] for m in server.client.get("/v1/models").json()["data"]] == ["tiny"]
    tokens = server.client.post("/tokenize", json={"prompt": "abc"}).json()["tokens"]
    text = server.client.post("/detokenize", json={"tokens": tokens}).json()
    assert text["text" if "text" in text else "prompt"] == "abc"
    assert server.complete("a", temperature="hot").status_code == 400
    assert server.complete("a", model="none").status_code == 404


def test_replicas_and_workers_have_the_priority_of_a_server(server: Server) -> None:
    """Ray would give them a thirtieth of a core beside a busy process, and streams would starve."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    pids = [*workers(), *workers().values()]
    assert len(pids) == 4
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {own}


def test_requests_that_share_a_prefix_share_a_replica(server: Server) -> None:
    """From the second request on, a replica finds the prompt in its cache."""
    for name in "uvwxyz":
        cached = [
            server.complete(name * 64).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for _ in range(3)
        ]
        assert cached[0] < 16
        assert cached[1:] == [48, 48]
    assert len(server.metric("engine_forwards_total")) == 2
    assert all(server.metric("engine_forwards_total").values())  # Both have worked.


def test_metrics_count_over_all_replicas(server: Server) -> None:
    before = sum(server.metric("generation_tokens_total").values())
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(server.complete, PROMPTS))
    counts = [answer.json()["usage"]["completion_tokens"] for answer in answers]
    assert sum(server.metric("generation_tokens_total").values()) == before + sum(counts)


def test_a_client_that_leaves_frees_its_replica(server: Server) -> None:
    before = sum(server.metric("engine_forwards_total").values())
    body = {"prompt": "leave", "max_tokens": 3000, "ignore_eos": True, "stream": True,
            "speculative": "none"}  # fmt: skip
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    until(lambda: not any(server.metric("num_requests_running").values()))
    assert sum(server.metric("engine_forwards_total").values()) - before < 2900


def test_a_killed_replica_loses_no_stream(server: Server) -> None:
    before, never = workers(), threading.Semaphore(0)
    body: dict[str, Any] = {"max_tokens": 3000, "temperature": 0.9, "speculative": "none"}
    with ThreadPoolExecutor(16) as threads:
        plain = [
            threads.submit(streamed, server, prompt, never, seed=5, **body) for prompt in PROMPTS
        ]
        wanted = [future.result()[0] for future in plain]
        started = threading.Semaphore(0)
        long = [
            threads.submit(streamed, server, prompt, started, seed=5, **body) for prompt in PROMPTS
        ]
        for _ in PROMPTS:
            assert started.acquire(timeout=120)
        victim = sorted(set(before.values()))[0]
        os.kill(victim, signal.SIGKILL)
        late = list(threads.map(server.complete, [prompt[::-1] for prompt in PROMPTS]))
        found = [future.result() for future in long]
    assert [answer.status_code for answer in late] == [200] * len(PROMPTS)
    assert [tokens for tokens, _ in found] == wanted
    print(f"longest gap {max(gap for _, gap in found):.2f} s")
    # The worker of the killed replica has ended with it, and Ray has started another replica.
    until(lambda: len(workers()) == 2 and victim not in workers().values())
    assert len(set(workers()) & set(before)) == 1
    until(lambda: len(server.metric("engine_forwards_total")) == 2)


def test_scaling_under_load_loses_no_stream(server: Server) -> None:
    """No stream is lost when a replica is removed without time to finish, and added again."""
    stop, never = threading.Event(), threading.Semaphore(0)
    body: dict[str, Any] = {"max_tokens": 1500, "temperature": 0.9, "speculative": "none"}
    wanted = [streamed(server, prompt, never, seed=7, **body)[0] for prompt in PROMPTS[:4]]
    same: list[bool] = []

    def ask(number: int) -> None:
        while not stop.is_set():
            tokens, _ = streamed(server, PROMPTS[number], never, seed=7, **body)
            same.append(tokens == wanted[number])

    hasty = replace(server.settings, drain_seconds=0.5)
    with ThreadPoolExecutor(4) as threads:
        loops = [threads.submit(ask, number) for number in range(4)]
        try:
            for count in (1, 2):
                deploy(hasty, Scaling(replicas=count))
                until(lambda: len(workers()) == count)  # noqa: B023
        finally:
            stop.set()
        for loop in loops:
            loop.result()
    assert all(same)
    assert len(same) >= 4


def test_an_update_loses_no_request(server: Server) -> None:
    before, stop = workers(), threading.Event()
    statuses: list[int] = []

    def ask(number: int) -> None:
        client = Server(server.settings)
        while not stop.is_set():
            statuses.append(client.complete(PROMPTS[number], max_tokens=64).status_code)

    worker = server.settings.models[0].worker.model_copy(update={"decoder": "copyspec"})
    changed = replace(server.settings, models=(Served("tiny", worker),))
    with ThreadPoolExecutor(4) as threads:
        loops = [threads.submit(ask, number) for number in range(4)]
        try:
            deploy(changed, SCALING)
            until(lambda: len(workers()) == 2 and not set(workers()) & set(before))
        finally:
            stop.set()
        for loop in loops:
            loop.result()
    assert set(statuses) == {200}
    assert len(statuses) > 8
    until(lambda: "copyspec" in server.client.get("/v1/models").json()["data"][0]["decoder"])


def test_an_update_that_cannot_load_is_reported(server: Server, tmp_path: Path) -> None:
    worker = server.settings.models[0].worker.model_copy(update={"model": str(tmp_path)})
    broken = replace(server.settings, models=(Served("tiny", worker),))
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        deploy(broken, SCALING)
    assert server.complete("a").status_code == 200  # The replica that was to be next goes on.


def test_the_command(folder: str) -> None:
    """The command starts, answers, and ends at Ctrl-C during a long stream.

    It leaves nothing behind.
    """
    program = "from paradecode.cli import main; main()"
    arguments = ["serve", "--ray", "--port", "0", "--threads", "1", "--drain-timeout", "0.5",
                 f"tiny={folder}"]  # fmt: skip
    before = set(Path(tempfile.gettempdir()).glob("pd-ray-*"))
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        line = next((line for line in lines if line.startswith("ready: ")), "")
        assert line.endswith("/v1 serves tiny\n"), process.communicate()
        answer = httpx.post(f"{line.split()[1]}/completions", json={"prompt": "ab"}, timeout=60)
        assert answer.status_code == 200
        endless = {"prompt": "ab", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        where = f"{line.split()[1]}/completions"
        with httpx.stream("POST", where, json=endless, timeout=60) as stream:
            next(stream.iter_lines())
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert errors.rstrip().endswith("stopped")
    finally:
        process.kill()
        process.wait()
    assert set(Path(tempfile.gettempdir()).glob("pd-ray-*")) == before
