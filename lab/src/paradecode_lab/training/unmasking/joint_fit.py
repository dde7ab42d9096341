"""Fit the joint sampler's layer with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from paradecode.backends.torch.network import compute
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Op
from paradecode.core.tensor_file import MOST_BYTES
from paradecode.methods.canvas.policies.learned import JointLayer
from paradecode_lab.training.acceptance.metrics import split
from paradecode_lab.training.batched import BatchedModel
from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.fitting import fit
from paradecode_lab.training.running import TuneSettings
from paradecode_lab.training.unmasking.fine_tune import FEWEST
from paradecode_lab.training.unmasking.trajectories import OUTSIDE, PROMPT, Trajectories, four_times

CHECKS, CHECKED = 10, 64
"""CHECKS: how often the validation divergence is computed. CHECKED: the most texts for it.

The layer with the least divergence is kept. With 2,000 logged texts, all 300 validation texts would
take as long as 600 steps.
"""


@dataclass(frozen=True, kw_only=True)
class JointSettings(TuneSettings):
    """Settings of the training; the learning rate rises for 25 steps.

    The paper's rate is 5e-5 for 260 M parameters.

    Attributes:
        width: width of the layer; 0 takes the model's width, but at most 256.
        depth: the most tokens that the layer is unrolled over (3 in the paper).
    """

    width: int = 0
    depth: int = 3
    steps: int = 600
    rate: float = 1e-3


@dataclass(frozen=True)
class LayerDivergence:
    """Mean over masked positions of KL(the model on the true canvas || prediction), in nats.

    Attributes:
        layer: the mean for the layer's prediction.
        stale: the mean for the prediction of the forward that the layer starts from.
    """

    layer: float
    stale: float


@dataclass(frozen=True)
class JointReport:
    """Divergences on held-out prompts, after some more tokens were committed.

    Attributes:
        training, held_out: numbers of trajectories.
        parameters: number of the layer's weights, with the table of tokens.
        few: share of the masked positions that together have nine tenths of ``one.stale``. If it is
            small, only few positions teach the layer something.
        one: divergence after one token.
        all: divergence after ``depth`` tokens.
    """

    training: int
    held_out: int
    parameters: int
    few: float
    one: LayerDivergence
    all: LayerDivergence


Layer = tuple[tuple[Op, ...], dict[str, Tensor]]
"""Steps and weights of a layer."""


def _start(facts: dict[str, int], model: BatchedModel, seed: int) -> dict[str, Tensor]:
    """Return the initial weights of a layer, which leaves the states as they are."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in JointLayer(facts, {}).shapes().items():
        tensor = torch.randn(shape, generator=generator) * shape[0] ** -0.5
        if len(shape) == 1:
            tensor = torch.ones(shape)
        elif name == "table":  # The embeddings, projected; a random matrix keeps distances.
            embedding = model.parameters["embed"].cpu()
            size = embedding.shape[1]
            matrix = torch.randn(size, shape[1], generator=generator) * size**-0.5
            tensor = F.rms_norm(embedding, (size,)) @ matrix
        elif name == "out":
            tensor = torch.zeros(shape)
        tensors[name] = tensor.to(model.device).requires_grad_()
    return tensors


def fit_joint(
    model: BatchedModel, made: Trajectories, settings: JointSettings, progress: Progress
) -> tuple[JointLayer, JointReport]:
    """Train a layer on logged trajectories; equal arguments give equal weights on one machine.

    As in the paper, the model computes a canvas of a trajectory, and the layer gets the next d
    tokens one after the other. The loss is the divergence from what the model itself predicts at
    the positions that are still masked after these tokens. The weights of d = 1, 2, 3, ... are the
    softmax of 1, 1/2, 1/4, ...

    Raises:
        InvalidInput: if there are too few trajectories, or the layer would be too large.
    """
    facts = _facts(model, settings)
    train, checked, held = (
        np.flatnonzero(part) for part in split(np.arange(float(len(made))), settings.seed)
    )
    long = made.step.max(axis=1) >= settings.depth + 1
    train, checked, held = (part[long[part]] for part in (train, checked, held))
    if len(train) < FEWEST or not len(checked) or not len(held):
        raise InvalidInput(
            "samples", f"{len(made)} texts, {int(long.sum())} of enough tokens",
            f"log at least {2 * FEWEST}: give more prompts, or a smaller depth",
        )  # fmt: skip
    steps, layer = JointLayer(facts, {}).steps(), _start(facts, model, settings.seed)
    random = np.random.default_rng(settings.seed)
    weights = np.exp(0.5 ** np.arange(settings.depth))

    def loss() -> Tensor:
        depth = 1 + int(random.choice(settings.depth, p=weights / weights.sum()))
        rows = random.choice(train, settings.batch)
        return _divergence((steps, layer), model, made, rows, depth, random)[0].mean()

    def measured(
        layer: dict[str, Tensor], rows: NDArray[np.integer], depth: int
    ) -> NDArray[np.float64]:
        """Return the divergences [2, K] with the layer and without it.

        Each text is measured four times, at the same places in each call.
        """
        random, found = np.random.default_rng(0), []
        for some in four_times(rows, settings.batch):
            pair = _divergence((steps, layer), model, made, some, depth, random)
            found.append(torch.stack(pair).double().cpu().numpy())
        return np.concatenate(found, axis=1)

    looks = range(0, settings.steps + 1, max(1, settings.steps // CHECKS))
    optimizer = torch.optim.AdamW(layer.values(), settings.rate, weight_decay=0.0)
    found = fit(
        LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 25)), loss, settings.steps, progress,
        # At step 0 the layer is the identity; a trained layer must be better than that.
        clip=1.0, looks={*looks, settings.steps},
        validate=lambda: float(measured(layer, checked[:CHECKED], settings.depth)[0].mean()),
    )  # fmt: skip
    kept = dict(zip(layer, found, strict=True))
    tensors = {name: tensor.cpu().numpy() for name, tensor in kept.items()}
    size = sum(tensor.size for tensor in tensors.values())
    with torch.no_grad():
        one, several = (measured(kept, held, depth) for depth in (1, settings.depth))
    divergences = (LayerDivergence(*each.mean(axis=1).tolist()) for each in (one, several))
    report = JointReport(len(train), len(held), size, share_of_most(one[1]), *divergences)
    return JointLayer(facts, tensors), report


def share_of_most(values: NDArray[np.float64], most: float = 0.9) -> float:
    """Return the smallest share of the values [K] whose sum is ``most`` of the whole sum."""
    sums = np.sort(values)[::-1].cumsum()
    return float(np.searchsorted(sums, most * sums[-1]) + 1) / len(values)


def _facts(model: BatchedModel, settings: JointSettings) -> dict[str, int]:
    c = model.config
    width = settings.width or min(256, max(8, c.hidden_size // 8 * 8))
    if width % 8:
        raise InvalidInput("--width", width, "give a multiple of 8")
    heads = max(1, width // 64) if width % 64 == 0 else 1
    facts = {
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "width": width, "heads": heads,
        "inner": 2 * width,
    }  # fmt: skip
    size = 4 * sum(int(np.prod(shape)) for shape in JointLayer(facts, {}).shapes().values())
    if size > MOST_BYTES:
        raise InvalidInput(
            "--width", width, f"the file would have {size} bytes: give a smaller one"
        )
    return facts


def _divergence(
    layer: Layer,
    model: BatchedModel,
    made: Trajectories,
    rows: NDArray[np.integer],
    depth: int,
    random: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Return two divergences [K] at masked positions, with the layer and without it.

    The positions are those that are still masked ``depth`` tokens after a random canvas.
    """
    tokens, step = made.rows(rows)
    width = step.shape[1]
    last = step.max(axis=1)
    begin = np.array([random.integers(0, int(n) - depth + 1) for n in last])[:, None]
    inside = torch.from_numpy(step != OUTSIDE).to(model.device)

    def canvas(until: NDArray[np.integer]) -> Tensor:
        assert model.config.mask_token is not None
        known = (step == PROMPT) | ((step >= 0) & (step < until))
        return torch.from_numpy(np.where(known, tokens, model.config.mask_token)).to(model.device)

    with torch.no_grad():
        stale = model.about(model.states(canvas(begin), inside))
        truth = model.about(model.states(canvas(begin + depth), inside))
    places = torch.arange(width, device=model.device)
    groups = model.groups(places).repeat(len(rows), 1)
    groups[~inside] = width  # No row sees these, nor a first position that no row predicts.
    groups[:, : int(model.config.shift)] = width
    given = {"positions": places.repeat(len(rows), 1), "groups": groups}
    steps, tensors = layer
    states = stale
    for told in range(1, depth + 1):
        known = {"tokens": canvas(begin + told), "states": states}
        states = compute(steps, {**known, **given}, tensors)
    masked = torch.from_numpy((step >= begin + depth) & (step >= 0)).to(model.device)
    with torch.no_grad():
        wanted = model.logits(truth[masked]).log_softmax(-1)
        before = model.logits(stale[masked]).log_softmax(-1)
    now = model.logits(states[masked]).log_softmax(-1)
    return _kl(wanted, now), _kl(wanted, before)


def _kl(wanted: Tensor, found: Tensor) -> Tensor:
    """Return KL(wanted || found), [K], of log-probabilities [K, V].

    Tokens that are banned in both do not count.
    """
    terms = wanted.exp() * (wanted - found)
    return terms.nan_to_num(0.0).sum(-1)
