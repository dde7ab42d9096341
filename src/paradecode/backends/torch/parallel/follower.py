"""``python -m paradecode.backends.torch.parallel.follower``: a rank that repeats the first's calls.

The first line of stdin is JSON: the rank's place and the model's configuration. Weights come from
the first rank. Commands come through torch.distributed as plain JSON and bytes (``messages.py``).
When stdin ends, the first rank has ended, and this process ends as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import numpy as np
import torch.distributed as dist

from paradecode.backends.torch.backend import TorchBackend
from paradecode.backends.torch.parallel.messages import config_of, hear, spans_of
from paradecode.backends.torch.parallel.ranks import Place, join
from paradecode.core.errors import InvalidInput
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Tensor, Weights


def main() -> None:
    told = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    place, config = Place(**told["place"]), config_of(told["config"])
    mesh, commands = join(place)
    backend = TorchBackend(
        config,
        _nothing(config),
        dtype=place.dtype,
        device=place.own_device,
        threads=place.threads,
        mesh=mesh,
    )
    follow(backend, commands)
    os._exit(0)  # To take the groups down in order, all ranks would have to wait for one another.


def follow(backend: TorchBackend, commands: dist.ProcessGroup) -> None:
    """Repeat every command of the first rank, until the command is ``close``."""
    while True:
        do, values, arrays = hear(commands)
        if do == "reserve":
            backend.reserve(values)
        elif do == "copy":
            backend.copy(*arrays, values)
        elif do == "forward":
            try:
                backend.forward(spans_of(values, arrays))
            except InvalidInput:
                continue  # The first rank has refused it, too, before anything was stored.
        else:
            break


def _nothing(config: ModelConfig) -> Weights:
    """Return zeros in the shapes of the model's weights; they take no memory."""
    zero = np.float32(0)
    return {
        name: Tensor(np.broadcast_to(zero, shape), shape)
        for name, shape in config.tensors().items()
    }


def _end_with_the_first() -> None:
    while os.read(0, 1):  # Not sys.stdin: its lock would keep the interpreter from ending.
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
