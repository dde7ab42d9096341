"""The place where draft models and heads run: with the target, on own threads, or on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paradecode.backends import need_torch, open_backend
from paradecode.backends.interface import Backend, RunsNetworks
from paradecode.backends.native.machine import default_threads
from paradecode.core.checks import whole
from paradecode.core.errors import InvalidInput
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights


@dataclass(frozen=True)
class DraftPlace:
    """The user's choice of where draft models and draft heads run.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``, where PyTorch runs them, whatever runs the target.
            None: the target's backend runs them.
        threads: number of CPU threads for them alone; None: as many as the target has.

    Raises:
        InvalidInput: the device does not exist, ``threads`` is out of range, or it is given for a
            GPU.
        BackendError: a device was given, but PyTorch is not installed.
    """

    device: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            whole(1, 1024)("draft_threads", self.threads)
        if self.device is None:
            return
        need_torch()
        from paradecode.backends.torch.device import open_device

        if open_device(self.device, "draft_device").type != "cpu" and self.threads is not None:
            fix = f"leave it out: what drafts runs on {self.device}"
            raise InvalidInput("draft_threads", self.threads, fix)

    @property
    def apart(self) -> bool:
        """True if a draft model can run at the same time as the target."""
        return self.device is not None or self.threads is not None

    def left(self, threads: int | None) -> int | None:
        """Return the number of CPU threads for the target, after those of a draft model.

        A number in ``threads`` is returned unchanged.
        """
        if threads is not None or self.threads is None:
            return threads
        return max(1, default_threads() - self.threads)

    def open_heads(self, target: Backend, threads: int | None = None) -> RunsNetworks | None:
        """Open the backend that runs draft heads; None means the target's own backend.

        Args:
            threads: CPU threads of the target; None: as many as are allowed.

        Raises:
            InvalidInput: draft heads cannot run there beside this target.
        """
        if self.device is not None:
            if target.name.startswith("torch-cpu") and self.device.startswith("cpu"):
                fix = "leave it out: PyTorch runs the target there"
                raise InvalidInput("draft_device", self.device, fix)
            import torch

            from paradecode.backends.torch.network import TorchNetworks

            if (own := self._of_torch(threads)) is not None:
                torch.set_num_threads(own)
            return TorchNetworks(torch.device(self.device))
        if self.threads is None:
            return None
        if target.name != "native":
            fix = "leave it out: only the native backend has threads for each model"
            raise InvalidInput("draft_threads", self.threads, fix)
        from paradecode.backends.native.heads import NativeHeads

        return NativeHeads(self.threads)

    def open_model(
        self, config: ModelConfig, weights: Weights, threads: int | None,
        beside: Callable[..., Backend],
    ) -> Backend:  # fmt: skip
        """Load a draft model into a backend.

        Args:
            threads: CPU threads of the target; None: as many as are allowed.
            beside: :func:`open_backend` with the target's backend and device.
        """
        if self.device is not None:
            own = self._of_torch(threads)
            return open_backend("torch", config, weights, device=self.device, threads=own)
        apart = self.threads is not None
        return beside(config, weights, threads=self.threads or threads, apart=apart)

    def _of_torch(self, threads: int | None) -> int | None:
        """Return the number of PyTorch threads; None if a GPU drafts.

        Without a number PyTorch would take all cores.
        """
        on_cpu = self.device is not None and self.device.startswith("cpu")
        return self.threads or threads or default_threads() if on_cpu else None
