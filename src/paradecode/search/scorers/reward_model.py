"""Scorers that predict a reward: a head on the target's hidden state, and a separate model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.network import Array, Network, Op
from paradecode.engine.prompt import LastStateReader, reading_request
from paradecode.methods.draft.budgets.networks import ResidualHead
from paradecode.methods.parts import declare, local_path, parameter
from paradecode.methods.trained import linear, read_once, rms_norm
from paradecode.search.scorers.scorer import Rated, Reads

if TYPE_CHECKING:
    from paradecode.engine.engine import Engine
    from paradecode.models.checkpoint import Checkpoint


class RewardHead(ResidualHead):
    """Predicts from the target's last hidden state whether a partial answer becomes right.

    The file has the metadata and tensors of a :class:`ResidualHead` that reads hidden states. The
    output is a probability.
    """

    kind = "reward head 1"
    field = "process_reward"


@declare(
    "scorer", "process-reward", training="paradecode train reward", arxiv="2312.08935",
    paper="Math-Shepherd (labels from continuations)",
)  # fmt: skip
class ProcessReward:
    """The probability that a branch leads to a right answer, predicted by a trained head.

    The head reads the target's hidden state of the last token, so a score costs one row of a
    forward pass.

    When: tasks like the tasks that it was trained for.
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


@dataclass(frozen=True, eq=False)
class RewardJudge:
    """A loaded reward model, with an engine of its own."""

    checkpoint: Checkpoint
    engine: Engine
    network: Network

    def tokens(self, rated: Rated) -> list[list[int]]:
        """Return prompt and output of each branch as token ids of the reward model.

        The target's ids are used if they mean the same in the reward model, also for control
        tokens. Otherwise the texts are tokenized again.
        """
        own, prompt = self.checkpoint.tokenizer, rated.prompt_tokens.tolist()
        told = [own.decode(branch.tokens) for branch in rated.branches]
        same = all(said.startswith(branch.text) for said, branch in zip(told, rated.branches))
        if same and own.decode(prompt) == rated.prompt:
            return [[*prompt, *branch.tokens] for branch in rated.branches]
        return [own.encode(rated.prompt + branch.text) for branch in rated.branches]


@declare("scorer", "reward-model", training="a folder with score weights")
class RewardModel:
    """The score that a reward model (a sequence classifier) gives to prompt and answer.

    The folder has the weights of a supported architecture and ``score.weight``, as transformers
    writes a ``LlamaForSequenceClassification``. The score is read at the last token. If the
    classifier has two outputs, the score is the probability of the second one. The model is loaded
    once, and has a K/V cache of its own.

    When: there is a reward model for the kind of task at hand.
    """

    path: str = local_path("a folder of safetensors")
    sigmoid: bool = parameter(False, 0, 1, "bring the score to 0 to 1, as a-star wants it")
    reads: Reads = "texts"
    judge: RewardJudge = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.path:
            raise InvalidInput("reward-model.path", "", "name a folder")
        self.judge = open_judge(self.path)

    def rate(self, rated: Rated) -> Sequence[float]:
        from paradecode.engine.engine import run

        judge, config = self.judge, self.judge.checkpoint.config
        texts = judge.tokens(rated)
        if (longest := max(map(len, texts))) >= config.context_length:
            fix = f"the reward model's context has {config.context_length} tokens"
            raise InvalidInput("reward-model", f"{longest} tokens", fix)
        readers = [LastStateReader(judge.network) for _ in texts]
        asked = [reading_request(config, ids, one) for ids, one in zip(texts, readers)]
        for sequence in run(judge.engine, asked):
            if sequence.error is not None:
                raise sequence.error
        outputs = np.stack([reader.output for reader in readers]).astype(np.float64)
        logits = outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0.0)
        if self.sigmoid or outputs.shape[1] == 2:
            logits = np.exp(-np.logaddexp(0.0, -logits))
        scores: list[float] = logits.tolist()
        return scores


@read_once("reward-model.path")
def open_judge(path: str) -> RewardJudge:
    """Load a reward model; raise InvalidModel if the folder has none."""
    # Imported here because listing the methods imports this file, and needs no engine.
    from paradecode.backends import open_backend
    from paradecode.engine.engine import Engine
    from paradecode.models.safetensors_dir import read_classifier

    checkpoint, scores = read_classifier(path)
    config = checkpoint.config
    gain = checkpoint.weights["norm"].float32()
    steps = rms_norm("state", "x", "norm", config.norm_eps)
    network = Network(
        {"x": config.hidden_size}, (*steps, *_score_steps(scores)),
        {"norm": gain, **{name: _used(values) for name, values in scores.items()}},
    )  # fmt: skip
    width = network.widths[network.steps[-1].out]
    if width not in (1, 2):
        raise InvalidModel("score.weight", f"{width} outputs", "use a model with one or two")
    engine = Engine({"target": open_backend("auto", config, checkpoint.weights)})
    return RewardJudge(checkpoint, engine, network)


def _score_steps(scores: Mapping[str, Array]) -> Sequence[Op]:
    """Return the operations of the score: one linear layer, or two with a ReLU between them."""
    names = ("score",) if "score.weight" in scores else ("score.0", "score.2")
    known = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    wrong = sorted({f"{name}.weight" for name in names} - scores.keys() or scores.keys() - known)
    if wrong:
        raise InvalidModel(wrong[0], "tensor", "use a score of one layer, or of two with a ReLU")
    steps, value = list[Op](), "state"
    for name in names:
        if steps:
            steps.append(Op(f"{name}.in", "relu", (value,)))
            value = f"{name}.in"
        bias = f"{name}.bias" if f"{name}.bias" in scores else None
        steps += linear(name, value, f"{name}.weight", bias)
        value = name
    return steps


def _used(values: Array) -> Array:
    """Return an array in the layout that networks multiply: matrices are [inputs, outputs]."""
    return np.ascontiguousarray(values.T) if values.ndim == 2 else values
