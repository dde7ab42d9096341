"""Ranks of a divided model may fail to start, die, hang or be told to end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive import random_weights, tiny_config

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from paradecode.backends import open_backend
from paradecode.backends.interface import Span, SpanResult
from paradecode.backends.torch.parallel import leader
from paradecode.backends.torch.parallel.leader import ParallelBackend
from paradecode.core.errors import BackendError, BackendLost, InvalidInput
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse
from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.testing.toy import ToyBackend
from patience import PATIENCE, state, until


def open_two(config: ModelConfig, seconds: float = 60.0) -> ParallelBackend:
    return ParallelBackend(
        config, random_weights(config), ranks=2, dtype="fp64", threads=1, seconds=seconds
    )


@pytest.mark.parametrize(("settings", "told"), [
    ({"ranks": 4}, "kv_heads, which is 2"), ({"ranks": 0}, "1 to 64"), ({"ranks": True}, "ranks"),
    ({"ranks": 65}, "1 to 64"), ({"ranks": 2, "dtype": "fp8"}, "dtype"),
    ({"ranks": 2, "device": "cuda:1"}, "use cpu or cuda"),
    ({"ranks": 2, "device": "tpu"}, "use cpu or cuda"),
    ({"ranks": 2, "backend": "native"}, "use torch"),
])  # fmt: skip
def test_what_is_refused_before_a_rank_starts(settings, told, monkeypatch):
    monkeypatch.setattr(leader, "_start", None)
    config = tiny_config()
    name = settings.pop("backend", "torch")
    with pytest.raises((InvalidInput, BackendError), match=told):
        open_backend(name, config, random_weights(config), **settings)


@pytest.mark.parametrize("odd", [{"intermediate_size": 45}, {"mixture": Mixture(4, 2, 7)}])
def test_sizes_that_do_not_divide(odd: dict[str, Any]) -> None:
    config = tiny_config(**odd)
    with pytest.raises(InvalidInput, match="give a divisor of"):
        open_backend("torch", config, random_weights(config), ranks=2)


def test_more_ranks_than_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = tiny_config()
    with pytest.raises(InvalidInput, match="sees 1 CUDA"):
        open_backend("torch", config, random_weights(config), ranks=2, device="cuda")


def test_a_rank_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "FOLLOWER", ("sh", "-c", "read line; exit 7"))
    with pytest.raises(BackendError, match="ended with status 7"):
        open_two(tiny_config())
    assert not torch.distributed.is_initialized()


def repeat(two: ParallelBackend, span: Span) -> None:
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        two.forward([span])


@pytest.mark.wide
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_rank_that_dies_or_hangs(how: signal.Signals) -> None:
    """If a rank dies or hangs, calls soon fail, no process stays, and a new model loads."""
    config = tiny_config()
    two = open_two(config, seconds=10.0)
    process, folder = two._others[0], Path(two._folder.name)
    try:
        two.reserve(4)
        rows = np.arange(8, dtype=np.int32)
        span = Span(np.zeros(1, np.int32), rows, rows, rows, context=0, logits=rows)
        two.forward([span])
        hang = threading.Timer(0.01, lambda: process.send_signal(how))
        hang.start()
        with pytest.raises(BackendLost, match="load the model again"):
            repeat(two, span)
        for _ in range(2):
            with pytest.raises(BackendLost, match="load the model again"):
                two.reserve(4)
        assert process.poll() is not None
        assert not folder.exists()
    finally:
        two.close()
    assert not torch.distributed.is_initialized()


def test_the_engine_stops_when_its_backend_is_lost() -> None:
    """The engine stops instead of failing each request, so that a server's worker can restart."""

    class Lost(ToyBackend):
        def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
            raise BackendLost("a rank has died")

    engine = Engine({"target": Lost()}, Limits(kv_tokens=256))
    engine.add(GenerationRequest(np.array([5, 6], np.int32), parse("greedy")))
    with pytest.raises(BackendLost):
        engine.step()


FIRST = """
import time
from naive import random_weights, tiny_config
from paradecode.backends.torch.parallel.leader import ParallelBackend
config = tiny_config()
two = ParallelBackend(config, random_weights(config), ranks=2, threads=1)
print(two._others[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_no_rank_outlives_the_first(tmp_path: Path) -> None:
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places, "TMPDIR": str(tmp_path)}
    first = subprocess.Popen(
        [sys.executable, "-c", FIRST], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        pid = int(first.stdout.readline())
        assert state(pid) != "Z"
    finally:
        first.kill()
        first.communicate()
    until(lambda: state(pid) == "Z")


@pytest.mark.slow
def test_closing_ends_the_other_rank() -> None:
    two = open_two(tiny_config())
    process = two._others[0]
    two.close()
    two.close()
    assert process.returncode == 0
    with pytest.raises(BackendError, match="closed"):
        two.reserve(1)
