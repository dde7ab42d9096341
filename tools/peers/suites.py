"""How much `make bench` measures: engines, prompts and rounds, by name."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput

# Every peer in its best format and in the same format as ours, plain and with its best speculation.
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
    """Defaults of one run.

    Attributes:
        engines: patterns of their names; ``{source}`` stands for the format of the model's file.
        rounds: repetitions of everything.
        per_group: prompts of each group; None is all.
        max_tokens: upper bound on the prompts' own.
        retries: repetitions of one measurement while other processes keep the machine busy.
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
    """The suite of that name; InvalidInput when there is none."""
    if name not in SUITES:
        raise InvalidInput("suite", name, f"choose among {', '.join(SUITES)}")
    return SUITES[name]
