"""Fits Learn2PD's filter with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from paradecode.backends.torch.network import compute, run_networks
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.networks import UnmaskFilter
from paradecode.training.acceptance.metrics import Quality, quality, split
from paradecode.training.decoding import Progress
from paradecode.training.fitting import fit
from paradecode.training.unmasking.filter_samples import FilterSamples

FEWEST = 50
"""Forwards below which nothing can be said of a filter."""
CHECKS = 100
"""How often the validation loss is looked at."""


@dataclass(frozen=True)
class FilterSettings:
    """How to train; the rate is the paper's, which takes 40 000 epochs over 2640 prompts.

    Attributes:
        epochs: steps over all samples at once; the one of least validation loss is kept.
        width: hidden units; 0 is as many as positions (the paper).
        seed: of the split and the weights.
    """

    epochs: int = 4000
    width: int = 0
    rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True)
class FilterReport:
    """Held-out quality, over masked positions of prompts that training did not see.

    Attributes:
        training, held_out: forwards.
        rate: share of proposals that were final, held out.
        filter: of the filter.
        confidence: of the proposal's own probability, which `threshold` goes by.
        constant: of the training rate.
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

    The paper's loss counts every position of the block; here only those count that are judged, as
    nobody asks about the others.

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
    steps = UnmaskFilter.steps(facts)[:-1]  # Up to the log-odds.
    weights = {}
    for name, shape in UnmaskFilter.shapes(facts).items():
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
    predicted = run_networks(trained.network, given, torch.device("cpu"))[0]
    return trained, FilterReport(
        training=int(train.sum()),
        held_out=int(held.sum()),
        rate=float(truth.mean()),
        filter=quality(predicted[asked], truth),
        confidence=quality(confidence[asked], truth),
        constant=quality(np.full(len(truth), float(rates[0])), truth),
    )
