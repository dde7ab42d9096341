"""Connect the processes of one divided model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

PATIENCE = timedelta(days=3650)
"""Time that a rank waits for a command. It is long because the model may be idle; when the first
rank ends, the other ranks notice that at once."""

START = 600.0
"""Seconds within which all ranks must have connected; a higher value allows slower starts."""

PAUSE = 0.05
"""Seconds between two checks of which ranks have connected."""


@dataclass(frozen=True)
class Place:
    """The settings with which a rank connects to the others.

    Attributes:
        rank, ranks: index of this rank, and number of ranks.
        store: a file that all ranks can open, in a folder that no other user can open.
        device: ``cpu``, or ``cuda``: then rank r takes ``cuda:r``.
        dtype, threads: see :class:`paradecode.backends.torch.backend.TorchBackend`.
        seconds: time after which a rank that does not answer counts as dead.
    """

    rank: int
    ranks: int
    store: str
    device: str
    dtype: str
    threads: int | None
    seconds: float

    def values(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def own_device(self) -> str:
        return "cpu" if self.device == "cpu" else f"cuda:{self.rank}"


def join(
    place: Place, check: Callable[[], None] = lambda: None
) -> tuple[DeviceMesh, dist.ProcessGroup]:
    """Connect with the other ranks; return when all are connected.

    Args:
        check: called while other ranks are missing; it raises if they will not come.

    Returns:
        The mesh for tensors (gloo on the CPU, NCCL on CUDA), and the group for commands (gloo).

    Raises:
        TimeoutError: not all ranks connect within ``START`` seconds.
        RuntimeError: a rank ends meanwhile.
    """
    store = dist.FileStore(place.store, place.ranks)
    store.set(f"rank-{place.rank}", "here")
    everybody = [f"rank-{rank}" for rank in range(place.ranks)]
    limit = time.monotonic() + START
    while not store.check(everybody):
        check()
        if time.monotonic() > limit:
            raise TimeoutError(f"not all ranks came within {START:g} s")
        time.sleep(PAUSE)
    if place.device == "cuda":
        torch.cuda.set_device(place.rank)
    dist.init_process_group(
        "gloo" if place.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=place.seconds),
    )
    # A send waits for its receiver, so the first rank must notice a receiver that never comes.
    wait = timedelta(seconds=place.seconds) if place.rank == 0 else PATIENCE
    commands = dist.new_group(backend="gloo", timeout=wait)
    assert commands is not None
    return init_device_mesh(place.device, (place.ranks,)), commands
