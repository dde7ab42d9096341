"""The engines: which peer, which weights, which mode. Names are ``peer/weights[+speculation]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.registry import parse
from tools.peers.environments import (
    LLAMA_CPP,
    OPENVINO,
    TRANSFORMERS,
    VLLM,
    XLLAMACPP,
    Environment,
)

BASELINE = "llama-cpp/q4_1"
MANY = 1 << 16


@dataclass(frozen=True)
class Engine:
    """One line of the tables.

    Attributes:
        name: see above.
        environment: of the peer; None is this very environment.
        worker: script in ``workers``.
        files: format of the weights (see ``formats``).
        settings: passed to the worker; a value ``{"format": name}`` becomes that format's path.
        max_rounds: slow engines are measured less often.
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
        """Every format that has to be there before it is loaded."""
        named = [v.get("format") for v in self.settings.values() if isinstance(v, dict)]
        return [self.files, *(name for name in named if name)]

    @property
    def reference(self) -> str | None:
        """The same engine without speculation."""
        plain, plus, _ = self.name.partition("+")
        return plain if plus else None


def engines(decoders: Sequence[str] = ("prompt-lookup",)) -> list[Engine]:
    """All engines.

    Args:
        decoders: Paradecode's methods to run besides plain decoding.
    """
    return [*_paradecode(decoders), *_llama_cpp(), *_openvino(), *_vllm(), *_transformers()]


def select(known: Sequence[Engine], patterns: Sequence[str]) -> list[Engine]:
    """The engines whose names match one of the patterns (``llama-cpp/*``); none matches: error."""
    for pattern in patterns:
        if not any(fnmatchcase(engine.name, pattern) for engine in known):
            names = ", ".join(engine.name for engine in known)
            raise InvalidInput("--engines", pattern, f"choose among {names}")
    return [e for e in known if any(fnmatchcase(e.name, pattern) for pattern in patterns)]


def _paradecode(decoders: Sequence[str]) -> list[Engine]:
    found = []
    backends = []
    if find_spec("paradecode.backends.native._core") is not None:
        backends.append(("native", "q4_1", MANY))
    if find_spec("torch") is not None:
        backends.append(("torch", "fp32", 1))
    for backend, weights, rounds in backends:
        plain = f"paradecode-{backend}/{weights}"
        specs = {"": "greedy", **{f"+{parse(d)}": d for d in decoders}}
        for mode, spec in specs.items():
            settings = {"backend": backend, "decoder": spec}
            found.append(
                Engine(plain + mode, None, "paradecode_worker.py", "source", settings, rounds)
            )
    return found


def _llama_cpp() -> list[Engine]:
    found = []
    files = {"q4_1": "source", "q4_0": "q4_0", "q8_0": "q8_0"}
    for name, file in files.items():
        for mode, settings in (("", {}), ("+lookup", {"lookup": 2})):  # 2: its advice for CPUs.
            found.append(
                Engine(f"llama-cpp/{name}{mode}", LLAMA_CPP, "llama_cpp_worker.py", file, settings)
            )
    short = {"size_n": 4, "size_m": 8}  # The defaults, 12 and 48, rarely match in short answers.
    modes: dict[str, dict[str, Any]] = {
        "": {},
        "+ngram-simple": {"speculation": "ngram-simple"},
        "+ngram-simple-4-8": {"speculation": "ngram-simple", "ngram": short},
        "+ngram-map-k-4-8": {"speculation": "ngram-map-k", "ngram": short},
    }
    for name, chosen in (("q4_1", list(modes)), ("q4_0", ["", "+ngram-simple-4-8"])):
        for mode in chosen:
            found.append(
                Engine(f"xllamacpp/{name}{mode}", XLLAMACPP, "xllamacpp_worker.py", files[name],
                       modes[mode])
            )  # fmt: skip
    return found


def _openvino() -> list[Engine]:
    found = []
    for name, file in (
        ("int8", "openvino-int8"), ("int4", "openvino-int4"), ("gguf-q4_1", "source"),
    ):  # fmt: skip
        tokenizer = {} if file == "source" else {"tokenizer": {"format": "source"}}
        for mode, own in (("", {}), ("+lookup", {"lookup": 5})):
            found.append(
                Engine(f"openvino/{name}{mode}", OPENVINO, "openvino_worker.py", file,
                       {**tokenizer, **own})
            )  # fmt: skip
    return found


def _vllm() -> list[Engine]:
    return [
        Engine(f"vllm/bf16{mode}", VLLM, "vllm_worker.py", "safetensors",
               {"dtype": "bfloat16", **own}, max_rounds=2)
        for mode, own in (("", {}), ("+ngram", {"ngram": 5}))
    ]  # fmt: skip


def _transformers() -> list[Engine]:
    return [
        Engine(f"transformers/{short}{mode}", TRANSFORMERS, "transformers_worker.py",
               "safetensors", {"dtype": dtype, **own}, max_rounds=1)
        for short, dtype in (("bf16", "bfloat16"), ("fp32", "float32"))
        for mode, own in (("", {}), ("+lookup", {"lookup": 10}))
    ]  # fmt: skip
