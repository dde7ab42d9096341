"""More replicas start when the present ones have too many requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")
pytest.importorskip("uvicorn")
if not Path("/proc/self/stat").exists():
    pytest.skip("needs /proc to find the replicas", allow_module_level=True)

from ray_serving import Server, settings_of, workers

from paradecode.serve.ray.deploy import Scaling, cluster, deploy
from patience import until
from tiny_folder import write_folder

pytestmark = pytest.mark.slow


def test_load_brings_a_second_replica(tmp_path: Path) -> None:
    settings = settings_of(str(write_folder(tmp_path / "llama", "llama")))
    stop = threading.Event()
    statuses: list[int] = []

    def ask(number: int) -> None:
        client = Server(settings)
        while not stop.is_set():
            answer = client.complete(f"{number}" * 20, max_tokens=500, ignore_eos=True)
            statuses.append(answer.status_code)

    with cluster(cpus=2):
        deploy(settings, Scaling(replicas=1, most=2, ongoing=1))
        server = Server(settings)
        assert server.complete("a").status_code == 200
        assert len(workers()) == 1  # One request at a time is no reason for a second one.
        with ThreadPoolExecutor(6) as threads:
            loops = [threads.submit(ask, number) for number in range(6)]
            try:
                until(lambda: len(workers()) == 2)  # Ray waits half a minute by itself.
                until(lambda: len(server.metric("engine_forwards_total")) == 2)
                until(lambda: all(server.metric("engine_forwards_total").values()))
            finally:
                stop.set()
            for loop in loops:
                loop.result()
        assert set(statuses) == {200}
    until(lambda: not workers())
