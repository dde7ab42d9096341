"""Record samples for Learn2PD's filter: a block's confidences, and which proposals were final.

Each prompt is decoded twice, as in arXiv 2509.25188. The first decoding, one token a forward, gives
the reference. In the second one, an oracle commits the positions at which the model proposes the
reference's token. Every forward of the oracle gives one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.llm import LLM
from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.blockwise import NoCache
from paradecode.methods.canvas.canvas import Canvas, Decision, View
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.policies.learned import DECIDED_INPUT
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.samples import Samples
from paradecode_lab.training.unmasking.trajectories import RecordedSteps
from paradecode_lab.training.unmasking.workload import CanvasWorkload

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FilterSamples(Samples):
    """Samples of N forwards over blocks of B positions.

    Attributes:
        confidence: float32 [N, B], probability of the best token; 1 after the end of a short block.
        final: float32 [N, B], 1 where a judged position's best token is that of the reference.
        judged: float32 [N, B], 1 where the position was masked and its reference is known.
        prompt: float32 [N], index of the prompt.
    """

    kind: ClassVar = "unmask filter samples 1"
    axes: ClassVar = {"confidence": "NB", "final": "NB", "judged": "NB", "prompt": "N"}

    confidence: Array
    final: Array
    judged: Array
    prompt: Array


@dataclass
class ReferenceOracle(Policy):
    """A policy that commits proposals that equal the reference, and records every forward.

    If no proposal does, it commits the reference's token at the most confident position. Each
    forward thus sees a canvas that decoding can really produce. (The paper fills the whole block.)

    Attributes:
        reference: the canvas after static decoding; positions that are still masked there are
            unknown.
        block: number of positions in a block.
        rows: confidence, final and judged of each forward, each float32 [block].
    """

    observes = "window"

    reference: Canvas
    block: int
    rows: list[Array] = field(default_factory=list)

    def decide(self, view: View) -> Decision:
        tokens = self.reference.tokens[view.positions]
        judged = view.eligible & ~self.reference.masked[view.positions]
        right = judged & (view.proposals == tokens)
        seen = np.zeros((3, self.block), np.float32)
        seen[0] = DECIDED_INPUT
        seen[:, view.positions - view.window.start] = view.confidence, right, judged
        self.rows.append(seen)
        if right.any():
            return Decision(view.positions[right])
        best = np.where(judged, view.confidence, -1.0).argmax()
        return Decision(view.positions[best][None], tokens[best][None])


def record_filter_samples(
    llm: LLM, workload: CanvasWorkload, block: int, progress: Progress
) -> FilterSamples:
    """Decode a workload twice in blocks of ``block`` positions, and return the oracle's samples."""
    prompts, params = workload.encoded(llm), workload.params()
    count = len(prompts)

    def decode(policies: Sequence[Policy], before: int) -> None:
        decode_all(
            llm, prompts,
            lambda n: Unmask(policies[n], FixedBlocks(), NoCache(), block_length=block),
            [params] * count, lambda done, _: progress(before + done, 2 * count),
        )  # fmt: skip

    plain = [RecordedSteps() for _ in prompts]
    decode(plain, 0)
    oracles = [ReferenceOracle(each.canvas, block) for each in plain]
    decode(oracles, count)
    found = [oracle.rows for oracle in oracles]
    rows = np.array([row for each in found for row in each], np.float32).reshape(-1, 3, block)
    prompt = np.repeat(np.arange(count, dtype=np.float32), [len(each) for each in found])
    return FilterSamples(rows[:, 0], rows[:, 1], rows[:, 2], prompt)
