"""The file of a recording: safetensors, with a JSON header in its metadata. Never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.measure.replay.recording import (
    MOST_TOP,
    Identity,
    Recording,
    Request,
    Timing,
    check,
)

KEY = "paradecode.replay"
VERSION = 2
MOST_BYTES = 1 << 31
DTYPES: dict[str, np.dtype[Any]] = {
    "tokens": np.dtype(np.int32), "lengths": np.dtype(np.int64), "top_ids": np.dtype(np.int32),
    "top_logits": np.dtype(np.float32), "log_normalizer": np.dtype(np.float64),
}  # fmt: skip
DAMAGE = (
    OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
    OverflowError,
)  # fmt: skip
"""What reading a damaged file may raise."""
FIX = "give a file that `paradecode replay record` has written"


def write(recording: Recording, path: Path) -> None:
    """Write a recording; what was at ``path`` stays whole until the new file is."""
    check(recording)
    requests = recording.requests
    header = {
        "version": VERSION,
        "model": asdict(recording.model),
        "params": asdict(recording.params),
        "curve": asdict(recording.curve),
        "timing": asdict(recording.timing),
        "requests": [[request.id, request.group] for request in requests],
    }
    tensors: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([request.text for request in requests]),
        "lengths": np.array(
            [[len(r.prompt), len(r.output), len(r.tail), r.max_tokens] for r in requests]
        ),
        **{
            name: np.concatenate([getattr(request, name) for request in requests])
            for name in ("top_ids", "top_logits", "log_normalizer")
        },
    }
    tensors = {name: values.astype(DTYPES[name]) for name, values in tensors.items()}
    half = path.with_name(path.name + ".part")
    try:
        save_file(tensors, half, {KEY: json.dumps(header)})
        os.replace(half, path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput("recording", str(path), f"name a file to write ({error})") from None
    finally:
        half.unlink(missing_ok=True)


def read(path: Path) -> Recording:
    """Read a recording and check all of it."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput("recording", str(path), f"it is larger than {MOST_BYTES} bytes")
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "null"))
            if not isinstance(header, dict) or header.get("version") != VERSION:
                raise InvalidInput("recording", str(path), f"{FIX} (version {VERSION})")
            names = set(file.keys())
            if names != DTYPES.keys():
                raise InvalidInput("recording", sorted(names), FIX)
            tensors = {name: file.get_tensor(name) for name in DTYPES}
        recording = _recording(header, tensors)
    except InvalidInput:
        raise
    except DAMAGE as error:
        raise InvalidInput("recording", str(path), f"{FIX} ({error})") from None
    check(recording)
    return recording


def _recording(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Recording:
    for name, dtype in DTYPES.items():
        if tensors[name].dtype != dtype:
            raise InvalidInput(f"recording {name}", tensors[name].dtype, f"it must be {dtype}")
    tokens, lengths = tensors["tokens"], tensors["lengths"]
    named = header["requests"]
    if lengths.shape != (len(named), 4) or tokens.ndim != 1 or tensors["top_ids"].ndim != 2:
        raise InvalidInput("recording lengths", lengths.shape, f"expected [{len(named)}, 4]")
    if not 1 <= tensors["top_ids"].shape[1] <= MOST_TOP:
        raise InvalidInput("recording top_ids", tensors["top_ids"].shape, f"1 to {MOST_TOP} a row")
    if lengths.min(initial=0) < 0 or lengths.max(initial=0) > 1 << 31:
        raise InvalidInput("recording lengths", "a length", "lengths are not negative")
    if int(lengths[:, :3].sum()) != len(tokens):
        raise InvalidInput("recording lengths", int(lengths[:, :3].sum()), f"sum to {len(tokens)}")
    rows = len(tokens) - len(named)  # Nothing is said about the first token of a text.
    for name in ("top_ids", "top_logits", "log_normalizer"):
        if len(tensors[name]) != rows:
            raise InvalidInput(f"recording {name}", tensors[name].shape, f"give {rows} rows")
    requests, at, row = [], 0, 0
    for (name, group), (prompt, output, tail, most) in zip(named, lengths.tolist(), strict=True):
        if not isinstance(name, str) or not isinstance(group, str):
            raise InvalidInput("recording requests", name, "ids and groups are texts")
        stops = np.cumsum([at, prompt, output, tail]).tolist()
        place = slice(row, row + max(prompt + output + tail - 1, 0))
        requests.append(
            Request(
                id=name,
                group=group,
                prompt=tokens[stops[0] : stops[1]],
                output=tokens[stops[1] : stops[2]],
                tail=tokens[stops[2] : stops[3]],
                top_ids=tensors["top_ids"][place],
                top_logits=tensors["top_logits"][place],
                log_normalizer=tensors["log_normalizer"][place],
                max_tokens=most,
            )
        )
        at, row = stops[-1], place.stop
    return Recording(
        _identity(header["model"]), _params(header["params"]), curve_of(header["curve"]),
        _timing(header["timing"]), tuple(requests),
    )  # fmt: skip


def _identity(given: Mapping[str, Any]) -> Identity:
    model = Identity(**{**given, "eos_tokens": tuple(given["eos_tokens"])})
    if not isinstance(model.name, str) or not isinstance(model.vocabulary, str):
        raise InvalidInput("recording model", model.name, "its name is a text")
    whole = (model.vocab_size, model.context_length, model.layers, model.hidden_size)
    for value in (*whole, *model.eos_tokens):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 24:
            raise InvalidInput("recording model", value, "its sizes are whole numbers")
    if 0 in whole:
        raise InvalidInput("recording model", whole, "its sizes are positive")
    return model


def _params(given: Mapping[str, Any]) -> SamplingParams:
    bias = given.get("logit_bias")  # JSON has texts for keys.
    own = None if bias is None else {int(token): value for token, value in bias.items()}
    return SamplingParams.from_mapping({**given, "logit_bias": own})


def _timing(given: Mapping[str, Any]) -> Timing:
    timing = Timing(**{name: float(value) for name, value in given.items()})
    own = (timing.python, timing.top_k, timing.sample, timing.row)
    if not (all(0 <= value < 1e4 for value in own) and abs(timing.forward) < 1e4):
        raise InvalidInput("recording timing", given, "give seconds")
    return timing


def curve_of(given: Mapping[str, Any]) -> CostCurve:
    """A cost curve from JSON; raises InvalidInput unless it is one."""
    rows = tuple(int(count) for count in given["rows"])
    contexts = tuple(int(context) for context in given["contexts"])
    seconds = tuple(tuple(float(t) for t in column) for column in given["seconds"])
    shaped = len(seconds) == len(contexts) > 0 and all(len(s) == len(rows) > 0 for s in seconds)
    ordered = sorted(set(rows)) == list(rows) and sorted(set(contexts)) == list(contexts)
    if not (shaped and ordered and all(0 < t < 1e4 for column in seconds for t in column)):
        raise InvalidInput("recording curve", given, "give seconds for ascending rows and contexts")
    return CostCurve(rows, contexts, seconds)
