"""Defines how much `make bench` measures, by name: engines, prompts and rounds."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput

# Every peer in its best format and in our file's format, plain and with its best speculation.
MAIN = (
    "paradecode-native/*",
    "llama-cpp/{source}*", "llama-cpp/q4_0*", "llama-cpp/q8_0", "ik-llama-cpp/*",
    "xllamacpp/{source}", "xllamacpp/{source}+ngram-simple-4-8", "onnxruntime-genai/*",
    "openvino/int8*", "openvino/int4", "openvino/gguf-{source}",
    "vllm/*",
    "transformers/bf16*",
)  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """The defaults of a run.

    Attributes:
        engines: patterns of engine names; ``{source}`` stands for the format of the model's file.
        rounds: number of times that everything is measured.
        per_group: number of prompts of each group; None takes all.
        max_tokens: upper bound on the token limits of the prompts.
        retries: the most repetitions of one measurement while other processes keep the machine
            busy.
    """

    engines: tuple[str, ...]
    rounds: int
    per_group: int | None = None
    max_tokens: int | None = None
    retries: int = 1


SUITES = {
    "quick": Suite(("*",), rounds=1, per_group=1, max_tokens=48, retries=0),
    "main": Suite(MAIN, rounds=1),
    "full": Suite(("*",), rounds=3, retries=2),
}


def find_suite(name: str) -> Suite:
    """Return the suite with this name; raises InvalidInput if there is none."""
    if name not in SUITES:
        raise InvalidInput("suite", name, f"choose among {', '.join(SUITES)}")
    return SUITES[name]
