"""The models that the suite decodes with. They are tiny and random, and differ much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.models.config import ModelConfig
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor, Weights
from paradecode.testing.toy import ToyBackend, toy_config

DRAFT = "draft"
"""Name of the small model that a method may use for drafts."""

CONTEXT = 128
"""Context length of every model here. It is short, so that texts reach its end."""


@dataclass(frozen=True)
class Kind:
    """One target model.

    Attributes:
        name: name under which failures are reported.
        family: family of the methods that it serves.
        architecture, near_tie: properties of a tiny random transformer; an empty architecture means
            the toy.
        attention, shift: properties of a toy for canvas methods.
    """

    name: str
    family: str = "autoregressive"
    architecture: str = ""
    near_tie: bool = False
    attention: str = "full"
    shift: bool = False

    @property
    def reference(self) -> str:
        """Name of the reference that exact methods must equal."""
        return "plain decoding" if self.family == "autoregressive" else "static decoding"


KINDS = (
    Kind("toy"),
    Kind("llama", architecture="llama"),
    Kind("qwen2", architecture="qwen2"),
    Kind("qwen3-near-tie", architecture="qwen3", near_tie=True),
    Kind("mistral-window", architecture="mistral"),
    Kind("toy-masked", family="diffusion"),
    Kind("toy-shift", family="diffusion", shift=True),
    Kind("toy-block", family="diffusion", attention="block"),
    Kind("toy-causal-canvas", family="diffusion", attention="causal", shift=True),
    Kind("llada", family="diffusion", architecture="llada"),
    Kind("dream", family="diffusion", architecture="dream"),
    Kind("sdar", family="diffusion", architecture="sdar"),
)

BackendFactory = Callable[[Kind], Mapping[str, Backend]]
"""Returns new models by name: ``target``, and ``draft`` for methods that draft with a model."""


def oracle_backends(kind: Kind) -> Mapping[str, Backend]:
    """Return the toy, or torch in fp64. In their arithmetic, a batch changes no token."""
    if not kind.architecture:
        config, surprise = toy_config(context_length=CONTEXT), 200
        if kind.family == "diffusion":
            block = 4 if kind.attention == "block" else 0
            config = toy_config(29, CONTEXT, kind.attention, block, kind.shift, masked=True)
            surprise = 700  # Masks look alike, so more depends on their context.
        # Draft models have a mask token, for methods that draft on mask tokens.
        config_of_draft = replace(config, mask_token=config.vocab_size - 1)
        draft = ToyBackend(config_of_draft, seed=1, surprise=surprise)
        return {TARGET: ToyBackend(config, surprise=surprise), DRAFT: draft}
    return {
        TARGET: open_backend("torch", *checkpoint(kind), dtype="fp64", threads=1),
        DRAFT: open_backend("torch", *checkpoint(kind, blur=0.05), dtype="fp64", threads=1),
    }


@cache
def checkpoint(kind: Kind, blur: float = 0.0) -> tuple[ModelConfig, Weights]:
    """Return a tiny random model.

    Args:
        blur: relative noise on the weights, for a draft model that often agrees with the target.
            Such a model also has a mask token.
    """
    config, weights = tiny_checkpoint(kind.architecture, near_tie=kind.near_tie)
    config = replace(config, context_length=CONTEXT)
    return blurred(config, weights, blur) if blur else (config, weights)


def blurred(
    config: ModelConfig, weights: Weights, blur: float = 0.05
) -> tuple[ModelConfig, Weights]:
    """Return a draft model that often agrees with the model; see :func:`checkpoint`."""
    config = replace(config, mask_token=config.vocab_size - 1)
    random = np.random.default_rng(1)
    noisy = {}
    for name in config.tensors():
        values = weights[name].float32()
        noise = random.standard_normal(values.shape, np.float32)
        noisy[name] = Tensor(values * (1 + np.float32(blur) * noise), values.shape)
    return config, noisy
