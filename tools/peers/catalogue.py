"""Lists the engines: peer, weights and mode. Names have the form ``peer/weights[+speculation]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from paradecode_lab.measure.results import EngineInfo
from tools.peers.environments import (
    IK_LLAMA_CPP,
    LLAMA_CPP,
    ONNXRUNTIME,
    OPENVINO,
    TRANSFORMERS,
    VLLM,
    XLLAMACPP,
    Environment,
)

MANY = 1 << 16
Modes = Mapping[str, Mapping[str, Any]]
"""End of an engine's name -> the settings of that mode."""


@dataclass(frozen=True)
class Engine:
    """An engine, which is one line of the tables.

    Attributes:
        name: has the form ``peer/weights[+speculation]``.
        environment: the peer's environment; None means the one of this process.
        worker: name of a script in ``workers``.
        files: format of the weights (see ``formats``).
        settings: passed to the worker; a value ``{"format": name}`` becomes that format's path.
        max_rounds: the most rounds; slow engines are measured less often.
    """

    name: str
    environment: Environment | None
    worker: str
    files: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_rounds: int = MANY

    @property
    def peer(self) -> str:
        return self.name.partition("/")[0]

    @property
    def weights(self) -> str:
        return self.name.partition("/")[2].partition("+")[0]

    @property
    def mode(self) -> str:
        return self.name.partition("+")[2] or "plain"

    @property
    def formats(self) -> list[str]:
        """Return the names of all formats that the engine needs before it can be loaded."""
        named = [v.get("format") for v in self.settings.values() if isinstance(v, dict)]
        return [self.files, *(name for name in named if name)]

    def info(self, **known: Any) -> EngineInfo:
        """Return the engine's entry in the results."""
        return EngineInfo(
            name=self.name, peer=self.peer, weights=self.weights, mode=self.mode,
            reference=self.reference, settings=dict(self.settings), **known,
        )  # fmt: skip

    @property
    def reference(self) -> str | None:
        """Return the name of the same engine without speculation; None if this one has none."""
        plain, plus, _ = self.name.partition("+")
        return plain if plus else None


def family(
    name: str,
    environment: Environment | None,
    files: str,
    modes: Modes,
    max_rounds: int = MANY,
    **settings: Any,
) -> list[Engine]:
    """Return an engine for each mode; all of them have ``settings``."""
    worker = f"{environment.name if environment else 'paradecode'}_worker.py".replace("-", "_")
    return [
        Engine(name + mode, environment, worker, files, {**settings, **own}, max_rounds)
        for mode, own in modes.items()
    ]


def lookup(tokens: int) -> Modes:
    """Return the modes of plain decoding, and of prompt lookup with ``tokens`` draft tokens."""
    return {"": {}, "+lookup": {"lookup": tokens}}


PLAIN: Modes = {"": {}}
NGRAM: Modes = {"": {}, "+ngram": {"ngram": 5}}
SHORT = {"size_n": 4, "size_m": 8}
"""Settings for short answers. llama.cpp's defaults, 12 and 48, rarely find a match there."""

BRIEF: Modes = {"": {}, "+ngram-simple-4-8": {"speculation": "ngram-simple", "ngram": SHORT}}
SPECULATION: Modes = {
    "": {},
    "+ngram-simple": {"speculation": "ngram-simple"},
    **BRIEF,
    "+ngram-map-k-4-8": {"speculation": "ngram-map-k", "ngram": SHORT},
}
SOURCE = {"format": "source"}


def peers(weights: str) -> tuple[Engine, ...]:
    """Return all peers.

    ``weights`` names the format of the file from which all formats are made.
    """
    # For 32 rows or more of Q4_1, ik_llama.cpp (commit 8337e4cd) computes different results.
    rows = 31 if weights == "q4_1" else 512
    return (
        # llama.cpp advises 2 draft tokens for CPUs.
        *family(f"llama-cpp/{weights}", LLAMA_CPP, "source", lookup(2)),
        *family("llama-cpp/q4_0", LLAMA_CPP, "q4_0", lookup(2)),
        *family("llama-cpp/q8_0", LLAMA_CPP, "q8_0", lookup(2)),
        *family(f"ik-llama-cpp/{weights}", IK_LLAMA_CPP, "source", PLAIN, repack=True, batch=rows),
        *family(f"xllamacpp/{weights}", XLLAMACPP, "source", SPECULATION),
        *family("xllamacpp/q4_0", XLLAMACPP, "q4_0", BRIEF),
        *family("onnxruntime-genai/int4", ONNXRUNTIME, "onnx-int4", PLAIN),
        *family("onnxruntime-genai/int8", ONNXRUNTIME, "onnx-int8", PLAIN),
        *family("openvino/int8", OPENVINO, "openvino-int8", lookup(5), tokenizer=SOURCE),
        *family("openvino/int4", OPENVINO, "openvino-int4", lookup(5), tokenizer=SOURCE),
        *family(f"openvino/gguf-{weights}", OPENVINO, "source", lookup(5)),
        *family("vllm/bf16", VLLM, "safetensors", NGRAM, 2, dtype="bfloat16"),
        *family("transformers/bf16", TRANSFORMERS, "safetensors", lookup(10), 1, dtype="bfloat16"),
        *family("transformers/fp32", TRANSFORMERS, "safetensors", lookup(10), 1, dtype="float32"),
    )


def engines(decoders: Sequence[str] = ("prompt-lookup",), weights: str = "q4_1") -> list[Engine]:
    """Return all engines: Paradecode's and the peers.

    Args:
        decoders: Paradecode's methods that are measured besides plain decoding.
        weights: format of the model's file (see ``formats.weights_of``); the default is that of the
            default model.
    """
    modes = {"": {"decoder": "greedy"}, **{f"+{parse(d)}": {"decoder": d} for d in decoders}}
    own = []
    for backend, kept, rounds, package in (
        ("native", weights, MANY, "paradecode.backends.native._core"),
        ("torch", "fp32", 1, "torch"),
    ):
        if find_spec(package) is not None:
            name = f"paradecode-{backend}/{kept}"
            own += family(name, None, "source", modes, rounds, backend=backend)
    known = {engine.name: engine for engine in reversed([*own, *peers(weights)])}
    return list(reversed(known.values()))  # A file in Q4_0 needs no conversion to Q4_0.


def select(known: Sequence[Engine], patterns: Sequence[str]) -> list[Engine]:
    """Return the engines whose names match a pattern, such as ``llama-cpp/*``.

    Raises:
        InvalidInput: a pattern matches no engine.
    """
    for pattern in patterns:
        if not any(fnmatchcase(engine.name, pattern) for engine in known):
            names = ", ".join(engine.name for engine in known)
            raise InvalidInput("--engines", pattern, f"choose among {names}")
    return [e for e in known if any(fnmatchcase(e.name, pattern) for pattern in patterns)]
