"""Fit Learn2PD's filter with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from paradecode.backends.torch.network import TorchNetworks, compute
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import UnmaskFilter
from paradecode_lab.training.acceptance.metrics import Quality, quality, split
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.fitting import fit
from paradecode_lab.training.unmasking.filter_samples import FilterSamples

FEWEST = 50
"""The least number of recorded forwards; fewer are too few to judge a filter."""
CHECKS = 100
"""Number of times that the validation loss is computed."""


@dataclass(frozen=True)
class FilterSettings:
    """Settings of the training. The learning rate is the paper's.

    The paper trains for 40 000 epochs on 2640 prompts.

    Attributes:
        epochs: number of steps, each over all samples; the weights with the least validation loss
            are kept.
        width: number of hidden units; 0 takes as many as the block has positions, as in the paper.
        rate: learning rate of AdamW.
        seed: seed of the split and the weights.
    """

    epochs: int = 4000
    width: int = 0
    rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True)
class FilterReport:
    """Quality at masked positions of held-out prompts, which were not trained on.

    Attributes:
        training, held_out: numbers of forwards.
        rate: share of held-out proposals that were final.
        filter: quality of the filter's predictions.
        confidence: quality when the proposal's probability, which `threshold` uses, is the
            prediction.
        constant: quality when the rate of the training samples is always the prediction.
    """

    training: int
    held_out: int
    rate: float
    filter: Quality
    confidence: Quality
    constant: Quality


def fit_filter(
    samples: FilterSamples, settings: FilterSettings, progress: Progress
) -> tuple[UnmaskFilter, FilterReport]:
    """Train a filter on logged samples; equal arguments give equal weights on one machine.

    The paper's loss counts every position of the block. Here only judged positions count, because
    the filter is never used at the others.

    Raises:
        InvalidInput: if there are too few samples, or all have the same outcome.
    """
    parts = split(samples.prompt, settings.seed)
    judged = samples.judged > 0
    rates = [samples.final[part][judged[part]].mean() if part.any() else 0.0 for part in parts]
    if len(samples) < FEWEST or not all(0.0 < rate < 1.0 for rate in rates):
        raise InvalidInput(
            "samples", f"{len(samples)} forwards, {rates[0]:.0%} of the proposals final",
            f"log at least {FEWEST} with both outcomes: give more prompts",
        )  # fmt: skip
    train, validation, held = parts
    generator = torch.Generator().manual_seed(settings.seed)
    block = samples.final.shape[1]
    width = settings.width or block
    facts = {"block": block, "width": width}
    steps = UnmaskFilter(facts, {}).steps()[:-1]  # They end with the log-odds.
    weights = {}
    for name, shape in UnmaskFilter(facts, {}).shapes().items():
        bound = (block if name.endswith("1") else width) ** -0.5
        tensor = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        weights[name] = tensor.requires_grad_()

    def loss(part: np.ndarray) -> torch.Tensor:
        x, final, counts = (
            torch.from_numpy(each[part])
            for each in (samples.confidence, samples.final, samples.judged)
        )
        logits = compute(steps, {"confidence": x}, weights)
        losses = functional.binary_cross_entropy_with_logits(logits, final, reduction="none")
        return (losses * counts).sum() / counts.sum()

    every = max(1, settings.epochs // CHECKS)
    steady = LambdaLR(torch.optim.AdamW(weights.values(), settings.rate), lambda step: 1.0)
    kept = fit(
        steady, lambda: loss(train), settings.epochs, progress,
        looks=range(every, settings.epochs + 1, every), validate=lambda: float(loss(validation)),
    )  # fmt: skip
    tensors = {name: tensor.numpy() for name, tensor in zip(weights, kept, strict=True)}
    trained = UnmaskFilter(facts, tensors)
    asked = judged[held]
    truth, confidence = samples.final[held][asked], samples.confidence[held]
    given = [{"confidence": confidence}]
    predicted = TorchNetworks(torch.device("cpu")).apply(trained.network, given)[0]
    return trained, FilterReport(
        training=int(train.sum()),
        held_out=int(held.sum()),
        rate=float(truth.mean()),
        filter=quality(predicted[asked], truth),
        confidence=quality(confidence[asked], truth),
        constant=quality(np.full(len(truth), float(rates[0])), truth),
    )
