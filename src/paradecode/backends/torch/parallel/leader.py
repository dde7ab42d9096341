"""The first rank: it starts the other ranks, and sends them every call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paradecode.backends.interface import Span, SpanResult, check_spans
from paradecode.backends.torch.backend import DTYPES, TorchBackend
from paradecode.backends.torch.parallel.messages import Arrays, config_values, flat, tell
from paradecode.backends.torch.parallel.model import check_division
from paradecode.backends.torch.parallel.ranks import Place, join
from paradecode.core.errors import BackendError, BackendLost, InvalidInput
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights, check_weights

FOLLOWER = (sys.executable, "-m", "paradecode.backends.torch.parallel.follower")
GRACE = 5.0
"""Seconds that a rank gets to end by itself before it is killed."""

Result = TypeVar("Result")


class ParallelBackend(TorchBackend):
    """The first process of a model that is divided among processes of this machine.

    It is used like any other backend. The engine runs in this process, and every call that concerns
    the model is broadcast to the other ranks, which repeat it on their parts. This object starts
    and ends the other ranks. Messages are JSON and arrays of numbers; nothing is pickled. A process
    can hold one divided model at a time.

    Args:
        config, weights, dtype: see :class:`TorchBackend`.
        ranks: number of processes, including this one; at least 2.
        device: ``cpu``, or ``cuda`` for the devices ``cuda:0`` to ``cuda:{ranks - 1}``.
        threads: threads of each rank; None divides the CPU's threads among ranks on the CPU.
        seconds: time after which a rank that does not answer counts as dead.

    Raises:
        InvalidInput: the ranks do not divide the model, or the devices do not exist.
        InvalidModel: a weight is missing or misshapen.
        BackendLost: a rank did not start; any later call raises it if a rank has died or does not
            answer. The model must then be loaded again.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        ranks: int,
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        seconds: float = 120.0,
    ) -> None:
        _check(config, weights, ranks, dtype, device)
        if threads is None and device == "cpu":
            threads = max(1, torch.get_num_threads() // ranks)
        # Ranks use the loopback interface only: gloo does not check who connects.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory(prefix="paradecode-ranks-")
        first = Place(0, ranks, f"{self._folder.name}/store", device, dtype, threads, seconds)
        self._others = [_start(replace(first, rank=rank), config) for rank in range(1, ranks)]
        self._lost: Exception | None = None
        try:
            mesh, self._commands = join(first, self._check_started)
            super().__init__(
                config, weights, dtype=dtype, device=first.own_device, threads=threads, mesh=mesh
            )
        except Exception as error:
            raise self._give_up(error) from error
        except BaseException:
            self._end()
            raise

    def reserve(self, pages: int) -> None:
        run = super().reserve
        self._together(lambda: run(pages), "reserve", pages)

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        check_spans(self.config, self.pages, spans)  # Before the others hear of it.
        if any(span.attention is not None for span in spans):
            raise InvalidInput("attention", self.name, "each rank has the weights of its own heads")
        run = super().forward
        return self._together(lambda: run(spans), "forward", *flat(spans))

    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        run, rows = super().copy, [np.asarray(source, np.int64), np.asarray(target, np.int64)]
        self._together(lambda: run(*rows, window), "copy", window, rows)

    def close(self) -> None:
        if self._others and self._lost is None:
            try:
                tell(self._commands, "close")
                for process in self._others:
                    process.wait(GRACE)
            except (RuntimeError, subprocess.TimeoutExpired):
                pass  # They are killed below.
        self._end()
        super().close()

    def _together(
        self, run: Callable[[], Result], do: str, values: Any = None, arrays: Arrays = ()
    ) -> Result:
        """Run a call here and on all other ranks."""
        if self._lost is not None or any(other.poll() is not None for other in self._others):
            raise self._give_up(self._lost)
        if not self._others:
            raise BackendError("the backend is closed; make a new one")
        try:
            tell(self._commands, do, values, arrays)
            return run()
        except InvalidInput:
            raise  # All ranks have refused it alike.
        except Exception as error:
            raise self._give_up(error) from error
        except BaseException:  # Ctrl-C, in the middle of a step.
            self._give_up(RuntimeError("a step was interrupted"))
            raise

    def _check_started(self) -> None:
        for process in self._others:
            if process.poll() is not None:
                raise RuntimeError(f"it ended with status {process.returncode} as it started")

    def _give_up(self, error: Exception | None) -> BackendLost:
        """End the other ranks, because a rank that has missed a call can never catch up."""
        self._end()
        self._lost = error or RuntimeError("its process has ended")
        # gloo's messages begin with a place in its source and end with advice.
        said = re.sub(r"^\[\S+\] ", "", str(self._lost)).split(". ")[0][:200]
        return BackendLost(
            f"a rank of the divided model has died or did not answer in {self._seconds:g} s "
            f"({said}); load the model again"
        )

    def _end(self) -> None:
        others, self._others = self._others, []
        for process in others:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        if others and dist.is_initialized():
            dist.destroy_process_group()
        self._folder.cleanup()


def _check(config: ModelConfig, weights: Weights, ranks: int, dtype: str, device: str) -> None:
    """Check now what later only some ranks would notice, while the others wait for them."""
    if not dist.is_available():
        raise BackendError("this PyTorch was built without torch.distributed; install another")
    if dtype != "auto" and dtype not in DTYPES:
        raise InvalidInput("dtype", dtype, f"use one of auto, {', '.join(DTYPES)}")
    if device not in ("cpu", "cuda"):
        raise InvalidInput("device", device, "use cpu or cuda: each rank takes one device")
    found = torch.cuda.device_count()
    if device == "cuda" and found < ranks:
        raise InvalidInput("ranks", ranks, f"torch sees {found} CUDA devices here")
    check_division(config, ranks)
    check_weights(config, weights)
    if dist.is_initialized():
        raise InvalidInput("ranks", ranks, "a process holds one divided model; close the other")


def _start(place: Place, config: ModelConfig) -> subprocess.Popen[bytes]:
    # A session of its own: the first rank alone handles Ctrl-C in the terminal. What the other rank
    # prints goes to stderr; its stdin stays open for as long as this process lives.
    process = subprocess.Popen(
        FOLLOWER, stdin=subprocess.PIPE, stdout=sys.__stderr__, start_new_session=True
    )
    assert process.stdin is not None
    told = {"place": place.values(), "config": config_values(config)}
    process.stdin.write(json.dumps(told).encode() + b"\n")
    process.stdin.flush()
    return process
