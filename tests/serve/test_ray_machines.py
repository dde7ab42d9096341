"""A stream survives the death of a machine. Ray's own utility starts two machines on this one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest

pytest.importorskip("ray.serve")
pytest.importorskip("uvicorn")
if not Path("/proc/self/stat").exists():
    pytest.skip("needs /proc to find the replicas", allow_module_level=True)

import ray
from ray import serve
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster
from ray_serving import Server, descendants, settings_of, streamed, workers

from paradecode.serve.ray.deploy import SETTINGS, STORE_BYTES, Scaling, deploy
from patience import until
from tiny_folder import write_folder

pytestmark = pytest.mark.slow

MACHINE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
PROMPTS = [letter * 40 + "abcabc" for letter in "abcdefgh"]
BODY: dict[str, Any] = {"max_tokens": 2500, "temperature": 0.8, "speculative": "none"}


@contextmanager
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, Any]]:
    """Start one machine with Ray's head and the front, and a second one.

    Each has room for one replica.
    """
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    both = Cluster(initialize_head=True, head_node_args={**MACHINE, "include_dashboard": False})
    try:
        second = both.add_node(**MACHINE)
        ray.init(address=both.address, logging_level="WARNING", log_to_driver=False)
        yield both, second
    finally:
        with suppress(Exception):
            serve.shutdown()
        ray.shutdown()
        both.shutdown()


def stored() -> int:
    """Return how many bytes were ever put into the object stores of the living machines."""
    found = 0
    for node in ray.nodes():
        if node["Alive"]:
            reply = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)
            found += reply.store_stats.cumulative_created_bytes
    return found


def replicas_of(raylet: int) -> list[int]:
    """Return the processes of replicas that a raylet has started."""
    own = descendants()
    return [pid for pid in set(workers().values()) if own[pid][0] == raylet]


@pytest.mark.parametrize("how", ["dead", "silent"])
def test_a_machine_that_dies_loses_no_stream(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream is lost if a machine dies.

    If it is ``silent``, its processes, also Ray's own, do nothing more, but their connections stay
    open.
    """
    settings = settings_of(str(write_folder(tmp_path / "llama", "llama")))
    with machines(monkeypatch) as (both, second):
        deploy(settings, Scaling(replicas=2))
        server = Server(settings)
        until(lambda: len(server.metric("engine_forwards_total")) == 2)
        raylet = second.all_processes["raylet"][0].process.pid
        (victim,) = replicas_of(raylet)
        never = Semaphore(0)

        def ask(seed: int) -> tuple[list[int], float]:
            return streamed(server, PROMPTS[seed], never, seed=seed, **BODY)

        before = stored()
        with ThreadPoolExecutor(8) as threads:
            plain = [tokens for tokens, _ in threads.map(ask, range(8))]
            assert stored() - before < 1000  # Ten thousands of events did not pass through it.
            forwards = server.metric("engine_forwards_total")
            assert len(forwards) == 2
            assert all(forwards.values())  # Both have streams.
            started = Semaphore(0)
            running = [
                threads.submit(streamed, server, prompt, started, seed=seed, **BODY)
                for seed, prompt in enumerate(PROMPTS)
            ]
            for _ in PROMPTS:
                assert started.acquire(timeout=120)
            own = [pid for pid, parent in workers().items() if parent == victim]
            stopped = (raylet, victim, *own) if how == "silent" else ()
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            if not stopped:
                os.kill(raylet, signal.SIGKILL)
            found = [stream.result() for stream in running]
        assert [tokens for tokens, _ in found] == plain
        longest = max(gap for _, gap in found)
        print(f"{how}: longest gap {longest:.2f} s")
        assert longest < 20
        for pid in stopped:
            with suppress(ProcessLookupError):  # Those that Ray has started end with it.
                os.kill(pid, signal.SIGKILL)
        both.add_node(**MACHINE)  # A third machine takes the place of the second.
        until(lambda: len(server.metric("engine_forwards_total")) == 2)
        answers = [server.complete(prompt) for prompt in PROMPTS]
        assert {answer.status_code for answer in answers} == {200}
