"""Fit SpecDec++'s head with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from paradecode.backends.torch.network import TorchNetworks, compute
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.delayed import unit
from paradecode.methods.draft.budgets.networks import HIDDEN, ResidualHead
from paradecode_lab.training.acceptance.epochs import Epochs, least_loss
from paradecode_lab.training.acceptance.head_samples import HeadSamples
from paradecode_lab.training.acceptance.metrics import Quality, quality, split
from paradecode_lab.training.decoding import Progress

FEWEST = 200
"""The least number of samples; fewer are too few to judge a head."""


@dataclass(frozen=True)
class HeadSettings(Epochs):
    """Settings of the head's training; the paper trains for 3 epochs on 40 000 texts.

    Attributes:
        blocks: number of residual blocks (3 in the paper).
        rejection_weight: weight of a rejected token in the loss, relative to an accepted one (6 in
            the paper).
    """

    blocks: int = 3
    rejection_weight: float = 6.0


@dataclass(frozen=True)
class HeadReport:
    """Quality on held-out conversations, which were not trained on.

    Attributes:
        training, held_out: numbers of samples.
        rate: share of held-out tokens that were accepted.
        head: quality of the head's own predictions. They overstate rejections, which weigh more in
            training.
        unweighted: quality of the predictions after that weight is removed from their log-odds.
        probability: quality when the draft's own probability of the token is the prediction.
        constant: quality when the training samples' acceptance rate is always the prediction.
    """

    training: int
    held_out: int
    rate: float
    head: Quality
    unweighted: Quality
    probability: Quality
    constant: Quality


def fit_head(
    samples: HeadSamples, settings: HeadSettings, progress: Progress
) -> tuple[ResidualHead, HeadReport]:
    """Train a head on logged samples; equal arguments give equal weights on one machine.

    Raises:
        InvalidInput: if there are too few samples, or all have the same outcome.
    """
    parts = split(samples.prompt, settings.seed)
    outcomes = [set(samples.accepted[part].tolist()) for part in parts]
    if len(samples) < FEWEST or any(len(each) < 2 for each in outcomes):
        raise InvalidInput(
            "samples", f"{len(samples)}, {samples.accepted.sum():.0f} with outcome 1",
            f"log at least {FEWEST} of both outcomes: give more prompts or tokens",
        )  # fmt: skip
    train, validation, held = parts
    states = unit(samples.inputs) if samples.reads == HIDDEN else samples.inputs
    mean, deviation = states[train].mean(axis=0), states[train].std(axis=0)
    scale = np.where(deviation > 1e-6, 1.0 / np.maximum(deviation, 1e-6), 0.0).astype(np.float32)
    inputs, accepted = torch.from_numpy(samples.inputs), torch.from_numpy(samples.accepted)
    importance = torch.where(accepted > 0, 1.0, settings.rejection_weight)

    generator = torch.Generator().manual_seed(settings.seed)
    width = inputs.shape[1]
    right = float(samples.accepted[train].mean())
    out = torch.zeros(width + 1)
    out[-1] = float(np.log(right / (1 - right) / settings.rejection_weight))
    weight = torch.randn(width, width, generator=generator) * 0.1 / width**0.5
    learnt = {"weight": weight, "bias": torch.zeros(width), "out": out}
    fixed = {"mean": torch.from_numpy(mean), "scale": torch.from_numpy(scale)}
    facts = {"reads": samples.reads, "width": width, "blocks": settings.blocks}
    steps = ResidualHead(facts, {}).steps()[:-1]  # They end with the log-odds.
    parameters = [tensor.requires_grad_() for tensor in learnt.values()]

    def loss(rows: torch.Tensor, training: bool) -> torch.Tensor:
        logit = compute(steps, {"x": inputs[rows]}, ResidualHead.weights({**fixed, **learnt}))[:, 0]
        return functional.binary_cross_entropy_with_logits(logit, accepted[rows], importance[rows])

    kept = least_loss(parameters, loss, train, validation, settings, generator, progress)
    trained = {name: tensor.numpy() for name, tensor in zip(learnt, kept, strict=True)}
    head = ResidualHead(facts, {"mean": mean, "scale": scale, **trained})

    truth, given = samples.accepted[held], [{"x": samples.inputs[held]}]
    predicted = TorchNetworks(torch.device("cpu")).apply(head.network, given)[0][:, 0]
    # A weight of w for rejections in training multiplies their predicted odds by w.
    odds = settings.rejection_weight * predicted / (1.0 - predicted)
    return head, HeadReport(
        training=int(train.sum()),
        held_out=int(held.sum()),
        rate=float(truth.mean()),
        head=quality(predicted, truth),
        unweighted=quality(odds / (1.0 + odds), truth),
        probability=quality(samples.probability[held], truth),
        constant=quality(np.full(len(truth), samples.accepted[train].mean()), truth),
    )
