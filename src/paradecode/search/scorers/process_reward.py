"""A scorer with a small head on the target's hidden state, which predicts whether the answer is
right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paradecode.core.network import Network
from paradecode.methods.draft.budgets.networks import ResidualHead
from paradecode.methods.parts import declare, local_path
from paradecode.search.scorers.scorer import Rated, Reads


class RewardHead(ResidualHead):
    """The probability that a partial answer becomes right, from the target's last hidden state.

    Facts and tensors are those of :class:`ResidualHead` that reads states.
    """

    kind = "reward head 1"
    field = "process_reward"


@declare(
    "scorer", "process-reward", training="paradecode train reward", arxiv="2312.08935",
    paper="Math-Shepherd (labels from continuations)",
)  # fmt: skip
@dataclass
class ProcessReward:
    """The chance that a branch leads to a right answer, predicted by a trained head.

    It reads the target's hidden state of the last token, so a step costs one row of a forward.

    When: tasks like those that it was trained for.
    """

    path: str = local_path("a file of `paradecode train reward`")
    reads: Reads = "states"
    network: Network = field(init=False)

    def __post_init__(self) -> None:
        head = RewardHead.needed("process-reward", self.path, "paradecode train reward")
        self.network = head.network

    def rate(self, rated: Rated) -> Sequence[float]:
        chances: list[float] = rated.outputs[:, 0].tolist()
        return chances
