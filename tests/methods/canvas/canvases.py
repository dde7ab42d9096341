"""Masked diffusion models for tests, and functions that decode canvases on them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import asked
from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.automaton import TokenAutomaton
from paradecode.core.decoder import (
    Attend,
    BlockCausal,
    Decoder,
    Forward,
    Steps,
    Store,
    TokenSequence,
)
from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import CanvasStep
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.parts import known
from paradecode.methods.specs import methods
from paradecode.models.safetensors_dir import read_weights
from paradecode.testing.canvas_matrix import ATTENTION, policies, spec
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode.testing.trained_parts import settings

MASK = 28
"""The mask token of every toy model."""
EOS = 3
PROMPT = (5, 6, 7, MASK, 9, 4, 1)
"""A prompt that contains the mask token, which is an ordinary token in a prompt."""
PROMPTS = (PROMPT, (8,), tuple(4 + (3 * i * i + i) % 24 for i in range(37)), (MASK,) * 9)

BACKENDS = ("torch", "native")
POLICIES = policies()
"""The names of all registered canvas methods that have parts."""
UNTRAINED = sorted(name for name in POLICIES if methods()[name].training == "none")
"""Methods that need nothing trained; the others get the files of ``trained_parts``."""


def toy(kind: str, surprise: int = 700) -> ToyBackend:
    return ToyBackend(toy_config(**ATTENTION[kind]), surprise=surprise)


def specs() -> list[str]:
    """Return specs of every policy with every block rule and every cache.

    Trained parts have random weights.
    """
    parts = settings()
    assert set(parts) == set(POLICIES) - set(UNTRAINED), "a trained method without a test's part"
    return [
        spec(policy, blocks, cache)
        for policy in POLICIES
        for blocks in known("blocks")
        for cache in known("cache")
    ]


Method = str | Callable[[], Decoder]


def run_all(
    backend: Backend,
    jobs: Sequence[tuple[Method, Sequence[int], SamplingParams]],
    constraint: TokenAutomaton | None = None,
    **limits: Any,
) -> list[LiveSequence]:
    """Run requests in one engine, and check its page counts after every step."""
    engine = Engine({"target": backend}, Limits(**{"kv_tokens": 4096, **limits}), LetterText)
    sequences = asked(engine, *jobs, constraint=constraint)
    assert engine.pools["target"].held == 0
    return sequences


def run(
    backend: Backend,
    method: Method,
    prompt: Sequence[int] = PROMPT,
    max_tokens: int = 24,
    constraint: TokenAutomaton | None = None,
    **params: Any,
) -> LiveSequence:
    """Run one request to its end, and raise the error that ended it."""
    values = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, **params})
    (sequence,) = run_all(backend, [(method, prompt, values)], constraint)
    if sequence.error is not None:
        raise sequence.error
    return sequence


def steps(sequence: LiveSequence) -> list[CanvasStep]:
    """Return what each forward decided."""
    return [step.canvas for step in sequence.trace if step.canvas is not None]


def offsets(sequence: LiveSequence) -> list[tuple[int, ...]]:
    """Return the offsets that each forward decided."""
    return [step.offsets for step in steps(sequence)]


def backend_of(kind: str, folder: Path) -> Backend:
    """Open a folder in double precision in PyTorch, or in single precision in the core."""
    if kind == "torch":
        pytest.importorskip("torch")
        return open_backend("torch", *read_weights(folder), dtype="fp64", threads=1)
    return NativeBackend(*read_weights(folder), dtype="f32", kv_dtype="f32", threads=2)


class OneForward(Decoder):
    """A decoder that asks for the logits of some rows of uncached tokens, and ends."""

    def __init__(self, tokens: list[int], rows: list[int]) -> None:
        self.tokens, self.rows = np.array(tokens, np.int32), np.array(rows, np.int32)

    def decode(self, seq: TokenSequence) -> Steps:
        about = seq.about()
        attend = {"causal": Attend.CAUSAL, "full": Attend.FULL}.get(about.attention)
        reply = yield Forward(
            self.tokens, attend=attend or BlockCausal(about.block_length), store=Store.NONE,
            positions=np.arange(len(self.tokens), dtype=np.int32), visible=np.zeros(0, np.int32),
            logits=self.rows,
        )  # fmt: skip
        every = np.tile(np.arange(about.vocab_size), (len(self.rows), 1))
        self.logits = reply.logits.gather(every)
        seq.fill([1], None, [], "stop")


def trajectory(sequence: Any) -> list[list[list[int]]]:
    """Return the pairs [offset, token] that each forward decided."""
    steps = [step.canvas for step in sequence.trace]
    return [[list(pair) for pair in zip(s.offsets, s.tokens, strict=True)] for s in steps]
