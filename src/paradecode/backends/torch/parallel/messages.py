"""Messages from the first rank to the others: JSON and the bytes of arrays, without pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paradecode.backends.interface import Span, WindowPages
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.mixture import Mixture
from paradecode.models.parts import NAMES, Layer, Part

ARRAYS = (
    "pages", "tokens", "positions", "slots", "logits", "visible", "tail", "tail_positions", "mask",
    "embeddings", "resume",
)  # fmt: skip
"""Fields of a span that are arrays; the other fields are numbers."""

Arrays = Sequence[NDArray[Any]]


def tell(group: dist.ProcessGroup, do: str, values: Any = None, arrays: Arrays = ()) -> None:
    """Broadcast a command from the first rank: its size, then one vector of bytes.

    Args:
        group: a process group that uses CPU memory.
        do: name of the command.
        values: anything that JSON can hold.
        arrays: arrays of numbers, in any shapes.

    Raises:
        InvalidInput: an array holds objects; nothing was sent then.
    """
    for array in arrays:
        if array.dtype.hasobject:
            raise InvalidInput("array", array.dtype, "give numbers")
    head = {
        "do": do,
        "values": values,
        "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
    }
    parts = [json.dumps(head, default=int).encode() + b"\n", *(array.tobytes() for array in arrays)]
    data = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    dist.broadcast(torch.tensor([len(data)]), 0, group=group)
    dist.broadcast(data, 0, group=group)


def hear(group: dist.ProcessGroup) -> tuple[str, Any, list[NDArray[Any]]]:
    """Receive a command of :func:`tell`, and return its name, its values and its arrays."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(size, 0, group=group)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, 0, group=group)
    line, _, rest = data.numpy().tobytes().partition(b"\n")
    head = json.loads(line)
    arrays, at = [], 0
    for kind, shape in head["arrays"]:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(rest, kind, count, at).reshape(shape).copy())
        at += arrays[-1].nbytes
    return head["do"], head["values"], arrays


def flat(spans: Sequence[Span]) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """Convert spans to JSON values and arrays; fields that are None are left out."""
    values, arrays = [], []
    for span in spans:
        given = [name for name in ARRAYS if getattr(span, name) is not None]
        arrays += [getattr(span, name) for name in given]
        rest = {
            field.name: getattr(span, field.name)
            for field in fields(span)
            if field.name not in ARRAYS
        }
        rest["windows"] = [
            (window, first, pages.tolist()) for window, (first, pages) in span.windows.items()
        ]
        values.append({"arrays": given, **rest})
    return values, arrays


def spans_of(values: Sequence[dict[str, Any]], arrays: Arrays) -> list[Span]:
    """Rebuild the spans from the results of :func:`flat`."""
    spans, left = [], iter(arrays)
    for entry in values:
        own: dict[str, Any] = {name: next(left) for name in entry.pop("arrays")}
        layers = entry.pop("layers")
        spans.append(
            Span(
                context=entry["context"],
                hidden=tuple(entry["hidden"]),
                layers=None if layers is None else tuple(map(_layer, layers)),
                windows={
                    window: WindowPages(first, np.array(pages, np.int32))
                    for window, first, pages in entry["windows"]
                },
                **own,
            )
        )
    return spans


def _layer(value: Any) -> int | Half:
    """Return a layer, or half of a layer, which JSON holds as a list."""
    return Half(*value) if isinstance(value, list) else value


def config_values(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as JSON values; the parts of a layer by their kinds."""
    values = asdict(config)
    values["stack"] = [
        {
            **asdict(layer),
            "order": [
                [[type(part).__name__, asdict(part)] for part in group] for group in layer.groups
            ],
        }
        for layer in config.stack
    ]
    return values


def config_of(values: dict[str, Any]) -> ModelConfig:
    """Rebuild the configuration from :func:`config_values`, and check it like any other."""
    stack = tuple(
        Layer(
            **layer
            | {
                "order": tuple(
                    tuple(_part(kind, own) for kind, own in group) for group in layer["order"]
                )
            }
        )
        for layer in values["stack"]
    )
    ends = tuple(values["eos_tokens"])
    return ModelConfig(**values | {"stack": stack, "eos_tokens": ends})


def _part(kind: str, values: dict[str, Any]) -> Part:
    """Return a part of a layer, with its rotary positions or its experts."""
    if values.get("rope") is not None:
        rope = values["rope"]
        values["rope"] = Rope(**rope | {"factors": tuple(rope["factors"])})
    if values.get("mixture") is not None:
        values["mixture"] = Mixture(**values["mixture"])
    return next(known for known in NAMES if known.__name__ == kind)(**values)
