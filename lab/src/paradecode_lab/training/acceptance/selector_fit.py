"""Fit the selector of delayed trees with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from paradecode.backends.torch.network import TorchNetworks, compute
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Op
from paradecode.methods.draft.budgets.networks import SCALARS, TreeSelector, choices
from paradecode_lab.training.acceptance.epochs import Epochs, least_loss
from paradecode_lab.training.acceptance.metrics import split
from paradecode_lab.training.acceptance.selector_samples import SelectorSamples
from paradecode_lab.training.decoding import Progress

FEWEST = 200


@dataclass(frozen=True)
class SelectorSettings(Epochs):
    """Settings of the selector's training. Rates and weights are ours; the paper does not give any.

    Attributes:
        worst_weight: weight of the worst positions in the loss (the paper's lambda).
        worst_share: share of a batch's positions that count as the worst (the paper's alpha).
        dropout: share of dropped units after each of the two wide layers.
    """

    worst_weight: float = 0.1
    worst_share: float = 0.1
    dropout: float = 0.2
    batch: int = 128


@dataclass(frozen=True)
class ActionGain:
    """The gain of a choice of actions on held-out positions.

    Attributes:
        tokens: mean number of tokens per step.
        speed: tokens per second, relative to the best constant action.
    """

    tokens: float
    speed: float


@dataclass(frozen=True)
class SelectorReport:
    """Gains on held-out conversations, which were not trained on, at this machine's costs.

    Attributes:
        training, held_out: numbers of positions.
        action: branches, trunk and length of the single action that was best in training.
        constant: gain of that action at every position.
        formula: gain of the action that the budget without a selector takes.
        selector: gain of the trained network's actions.
        oracle: gain of the best action at each position, chosen afterwards.
    """

    training: int
    held_out: int
    action: tuple[int, int, int]
    constant: ActionGain
    formula: ActionGain
    selector: ActionGain
    oracle: ActionGain


def fit_selector(
    samples: SelectorSamples, settings: SelectorSettings, progress: Progress
) -> tuple[TreeSelector, SelectorReport]:
    """Train a selector on logged positions; equal arguments give equal weights on one machine.

    The loss is the paper's: -log(S / S0) + lambda * mean over the worst alpha of max(1 - s / s0,
    0)^2. Here S is the tokens per second of a batch under the network's softmax, and s that of one
    position. S0 and s0 are the same for the best constant action.

    Raises:
        InvalidInput: if there are too few samples.
    """
    train, validation, held = split(samples.prompt, settings.seed)
    if len(samples) < FEWEST or not (train.any() and validation.any() and held.any()):
        fix = f"log at least {FEWEST}: give more prompts or tokens"
        raise InvalidInput("samples", f"{len(samples)} positions", fix)
    speeds = samples.tokens[train].sum(axis=0) / samples.seconds
    base = int(np.argmax(speeds))
    p, q = samples.p_before.shape[1], samples.q_now.shape[1]
    facts = {"count": samples.count, "scalars": [*SCALARS], "p_before": p, "q_now": q}
    weights = _start(facts, samples.scalars[train], settings.seed)
    steps = TreeSelector(facts, {}).steps()
    trained = [name for name in weights if name not in ("mean", "scale")]
    parameters = [weights[name].requires_grad_() for name in trained]
    data = {name: torch.from_numpy(values) for name, values in samples.situation.items()}
    tokens, seconds = torch.from_numpy(samples.tokens), torch.from_numpy(samples.seconds)

    def loss(rows: torch.Tensor, training: bool) -> torch.Tensor:
        batch = {name: values[rows] for name, values in data.items()}

        def dropped(step: Op, value: torch.Tensor) -> torch.Tensor:
            drops = training and step.kind == "gelu"
            return functional.dropout(value, settings.dropout) if drops else value

        share = functional.softmax(compute(steps, batch, weights, dropped), dim=1)
        gained, taken = (share * tokens[rows]).sum(1), (share * seconds).sum(1)
        reference = tokens[rows, base] / seconds[base]
        total = (gained.sum() / taken.sum()) / reference.mean()
        lost = (1 - gained / taken / reference).clamp(min=0) ** 2
        worst = lost.topk(max(1, int(settings.worst_share * len(rows)))).values.mean()
        return -torch.log(total) + settings.worst_weight * worst

    with torch.random.fork_rng(devices=[]):  # The dropout's randomness is torch's own.
        torch.manual_seed(settings.seed)
        random = torch.default_generator
        kept = least_loss(parameters, loss, train, validation, settings, random, progress)
    weights |= zip(trained, kept, strict=True)
    selector = TreeSelector(facts, {name: t.numpy() for name, t in weights.items()})
    return selector, _report(selector, samples, train, held, base)


def _start(
    facts: dict[str, Any], scalars: NDArray[np.float32], seed: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in TreeSelector(facts, {}).shapes().items():
        if name.endswith(".weight"):
            weights[name] = torch.randn(shape, generator=generator) / shape[0] ** 0.5
        else:
            weights[name] = torch.full(shape, 1.0 if name.endswith(".gain") else 0.0)
    spread = scalars.std(axis=0)
    scale = np.where(spread > 1e-5, 1.0 / np.maximum(spread, 1e-5), 0.0)
    weights["mean"] = torch.from_numpy(scalars.mean(axis=0))
    weights["scale"] = torch.from_numpy(scale.astype(np.float32))
    return weights


def _report(
    selector: TreeSelector,
    samples: SelectorSamples,
    train: NDArray[np.bool_],
    held: NDArray[np.bool_],
    base: int,
) -> SelectorReport:
    options = choices(samples.count)
    tokens, seconds = samples.tokens[held], samples.seconds
    every = np.arange(len(tokens))

    def outcome(chosen: NDArray[np.integer]) -> ActionGain:
        gained, taken = tokens[every, chosen].sum(), seconds[chosen].sum()
        constant = tokens[:, base].sum() / (len(tokens) * seconds[base])
        return ActionGain(float(gained / len(tokens)), float(gained / taken / constant))

    # Actions with one level show how often the first candidate is right, or one of several
    # branches.
    level = {a.branches: i for i, a in enumerate(options) if (a.trunk, a.length) == (0, 1)}
    rate = {width: samples.tokens[train][:, place].mean() - 1 for width, place in level.items()}
    rate = {width: float(rate.get(width, max(rate.values()))) for width in range(1, 5)}
    promised = [1 + action.tokens(rate[1], rate[action.branches]) for action in options]
    formula = 1 + int(np.argmax((np.array(promised) / seconds)[1:]))  # This budget always drafts.
    seen = {name: values[held] for name, values in samples.situation.items()}
    scores = TorchNetworks(torch.device("cpu")).apply(selector.network, [seen])[0]
    best = options[base]
    return SelectorReport(
        training=int(train.sum()),
        held_out=len(tokens),
        action=(best.branches, best.trunk, best.length),
        constant=outcome(np.full(len(tokens), base)),
        formula=outcome(np.full(len(tokens), formula)),
        selector=outcome(scores.argmax(axis=1)),
        oracle=outcome((tokens / seconds).argmax(axis=1)),
    )
