"""Open PyTorch's devices by name."""

from __future__ import annotations

import torch

from paradecode.core.errors import InvalidInput


def open_device(name: str, field: str = "device") -> torch.device:
    """Return the device ``cpu``, ``cuda`` or ``cuda:N``.

    Args:
        field: name of the setting with the device, for errors.

    Raises:
        InvalidInput: the name is another one, or the device does not exist.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(field, name, "use cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InvalidInput(field, name, "use cpu: torch sees no CUDA device here")
        if (device.index or 0) >= count:
            raise InvalidInput(
                field, name, f"torch sees {count} here: use cuda:0 to cuda:{count - 1}"
            )
    return device
