"""Record the model's own texts for training, with the order in which it decoded them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.blockwise import NoCache
from paradecode.methods.canvas.canvas import Canvas, Decision, View
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.samples import FIELD, Origin, Samples
from paradecode_lab.training.unmasking.workload import CanvasWorkload

MASKED = -1
"""Value in ``Trajectories.step`` of a position that was not decided before the text ended."""
PROMPT = -2
"""Value in ``Trajectories.step`` of a position that is known from the start."""
OUTSIDE = -3
"""Value in ``Trajectories.step`` of a position after the end of this canvas."""


@dataclass(frozen=True, eq=False)
class Trajectories(Samples):
    """M decoded canvases of at most N positions.

    Attributes:
        tokens: float32 [M, N], token ids; the mask token at positions that were not decided.
        step: float32 [M, N], index of the forward that decided a position, from 0; or MASKED,
            PROMPT or OUTSIDE.
    """

    kind: ClassVar = "trajectories 1"
    axes: ClassVar = {"tokens": "MN", "step": "MN"}

    tokens: NDArray[np.float32]
    step: NDArray[np.float32]

    def rows(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return tokens and steps [B, T] of some canvases; T is the length of the longest one."""
        width = int((self.step[rows] != OUTSIDE).sum(axis=1).max())
        return self.tokens[rows, :width].astype(np.int64), self.step[rows, :width]

    @classmethod
    def load(cls, path: Path, origin: Origin, **known: Any) -> Trajectories:
        """Read trajectories; check their origin, and that their tokens are below ``vocab_size``."""
        vocab_size = known.pop("vocab_size")
        made = super().load(path, origin, **known)
        tokens, step = made.tokens, made.step
        whole = (tokens % 1 == 0) & (step % 1 == 0)
        known_tokens = (tokens >= 0) & (tokens < vocab_size)
        if not (whole & known_tokens & (step >= OUTSIDE) & (step < step.shape[1])).all():
            raise InvalidInput(FIELD, str(path), "it is damaged: name a new file")
        return made


def four_times(held: NDArray[np.integer], batch: int) -> list[NDArray[np.integer]]:
    """Return batches for a measurement, in which every held-out canvas occurs four times."""
    return np.array_split(np.tile(held, 4), -(-4 * len(held) // batch))


@dataclass
class RecordedSteps(Static):
    """Static decoding that records when each position was decided."""

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
