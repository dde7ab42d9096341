"""What models are taught from: their own texts, and the order in which they were decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.canvas.blocks.fixed import FixedBlocks
from paradecode.methods.canvas.caches.none import NoCache
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.static import Static
from paradecode.methods.canvas.view import Decision, View
from paradecode.training.decoding import Progress, decode_all
from paradecode.training.samples import FIELD, expect, load_samples, save_samples
from paradecode.training.unmasking.workload import CanvasWorkload

KIND = "trajectories 1"
MASKED = -1
"""In ``Trajectories.step``: never decided, as the text ended before it."""
PROMPT = -2
"""In ``Trajectories.step``: known from the start."""
OUTSIDE = -3
"""In ``Trajectories.step``: behind the end of this canvas."""


@dataclass(frozen=True, eq=False)
class Trajectories:
    """M canvases of at most N positions.

    Attributes:
        tokens: float32 [M, N] token ids; the mask token where nothing was decided.
        step: float32 [M, N], the forward that decided a position, from 0; else MASKED, PROMPT or
            OUTSIDE.
    """

    tokens: NDArray[np.float32]
    step: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.step)


@dataclass
class RecordedSteps(Static):
    """Static decoding that remembers when each position was decided."""

    def start(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.when = np.where(canvas.masked, MASKED, PROMPT)

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        self.when[decision.commit] = view.progress.step
        return decision


def record_trajectories(
    llm: LLM, workload: CanvasWorkload, block: int, progress: Progress
) -> Trajectories:
    """Decode a workload with one token a forward, in blocks of ``block`` positions."""
    prompts = workload.encoded(llm)
    policies = [RecordedSteps() for _ in prompts]

    def loop(number: int) -> Unmask:
        return Unmask(policies[number], FixedBlocks(), NoCache(), block_length=block)

    decode_all(llm, prompts, loop, [workload.params()] * len(prompts), progress)
    shape = len(policies), max(policy.canvas.end for policy in policies)
    tokens, step = np.zeros(shape, np.float32), np.full(shape, OUTSIDE, np.float32)
    for row, policy in enumerate(policies):
        tokens[row, : policy.canvas.end] = policy.canvas.tokens
        step[row, : policy.canvas.end] = policy.when
    return Trajectories(tokens, step)


def save_trajectories(path: Path, made: Trajectories, digest: str) -> None:
    """Keep trajectories under the digest of the workload they come from."""
    save_samples(path, KIND, digest, vars(made))


def load_trajectories(path: Path, digest: str, vocab_size: int) -> Trajectories:
    """Trajectories of the same workload; raises InvalidInput for others, or a damaged file."""
    _, tensors = load_samples(path, KIND, digest)
    shape = tensors["tokens"].shape if "tokens" in tensors else ()
    expect(path, tensors, {"tokens": shape, "step": shape})
    tokens, step = tensors["tokens"], tensors["step"]
    sound = len(shape) == 2 and (tokens % 1 == 0).all() and (step % 1 == 0).all()
    known = (tokens >= 0) & (tokens < vocab_size) & (step >= OUTSIDE)
    if not sound or not (known & (step < shape[-1])).all():
        raise InvalidInput(FIELD, str(path), "it is damaged: name a new file")
    return Trajectories(tokens, step)
