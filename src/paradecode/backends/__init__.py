"""Open backends by name; a backend runs the forwards of a model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from paradecode.backends.interface import Backend, Progress
from paradecode.backends.native import core_is_built
from paradecode.core.checks import maybe, whole
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.models.config import ModelConfig

if TYPE_CHECKING:
    from paradecode.models.weights import Weights

BACKENDS = ("native", "torch")
MAX_RANKS = 64
NO_CORE = (
    "paradecode was installed without its native core: get a C++20 compiler (on Debian g++) and"
    " install paradecode again"
)


def open_backend(
    name: str,
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    ranks: int = 1,
    apart: bool = False,
    progress: Progress = lambda done, total: None,
) -> Backend:
    """Load a model into a backend.

    Args:
        name: ``native`` (CPU), ``torch`` (CPU or CUDA), or ``auto``: native if it was built and the
            device is the CPU, torch otherwise.
        dtype: format of the weights, in the backend's names; ``auto`` keeps the file's format
            (native) or takes fp32 on CPU and bf16 on CUDA (torch).
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: CPU threads; None lets the backend choose.
        ranks: number of processes that divide the model among them (torch only), one per CUDA
            device.
        apart: whether the backend has CPU threads of its own, so that it can run at the same time
            as other models (native only).
        progress: called with the number of loaded bytes and of all bytes (native only).

    Raises:
        InvalidInput: a name, dtype or device is unknown, the ranks cannot divide the model, or the
            native core was compiled from other sources.
        InvalidModel: the weights do not fit the configuration.
        BackendError: the backend is not installed.
    """
    if name not in ("auto", *BACKENDS):
        raise InvalidInput("backend", name, f"use auto or one of {', '.join(BACKENDS)}")
    maybe(whole(1, 1024))("threads", threads)
    whole(1, MAX_RANKS)("ranks", ranks)
    if not config.plain and ranks != 1:
        raise InvalidInput("ranks", ranks, "leave it out: only Llama's layers are divided")
    wanted = name == "native" or (name == "auto" and device == "cpu" and ranks == 1)
    built = wanted and core_is_built()
    if name == "native" or built:
        if not built:
            raise BackendError(f"{NO_CORE}, or choose torch")
        if device != "cpu":
            raise InvalidInput("device", device, "the native backend runs on cpu; use torch")
        if ranks != 1:
            raise InvalidInput("ranks", ranks, "the native backend is one process; use torch")
        from paradecode.backends.native.backend import NativeBackend

        return NativeBackend(
            config, weights, dtype=dtype, threads=threads, apart=apart, progress=progress
        )
    need_torch(f"{NO_CORE}; without it models run on PyTorch, and " if wanted else "")
    if ranks != 1:
        if find_spec("torch.distributed.tensor") is None:
            raise BackendError("several ranks need PyTorch 2.5 or newer; pip install -U torch")
        from paradecode.backends.torch.parallel.leader import ParallelBackend

        return ParallelBackend(
            config, weights, ranks=ranks, dtype=dtype, device=device, threads=threads
        )
    from paradecode.backends.torch.backend import TorchBackend

    return TorchBackend(config, weights, dtype=dtype, device=device, threads=threads)


def need_torch(why: str = "") -> None:
    """Raise BackendError unless PyTorch is installed; called before PyTorch is first imported.

    Args:
        why: text at the beginning of that error.
    """
    if find_spec("torch") is None:
        raise BackendError(
            f"{why}PyTorch is not installed; pip install -e '.[torch]' in the checkout"
        )
    # A spinning OpenMP thread beside one busy process slows a forward down a hundredfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
