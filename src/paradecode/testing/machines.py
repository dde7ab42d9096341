"""The models that the suite decodes with: tiny, random, and nothing like one another."""

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
"""Name of the small model that a method may bring."""

CONTEXT = 128
"""Context length of every model here: short, so that texts reach its end."""


@dataclass(frozen=True)
class Kind:
    """One target model.

    Attributes:
        name: what a failure is reported under.
        family: of the methods it serves.
        architecture, near_tie: of a tiny random transformer; an empty architecture is the toy.
        attention, shift: of a toy for canvas methods.
    """

    name: str
    family: str = "autoregressive"
    architecture: str = ""
    near_tie: bool = False
    attention: str = "full"
    shift: bool = False

    @property
    def reference(self) -> str:
        """What exact methods must equal."""
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
"""Makes fresh models by name: ``target``, and ``draft`` for methods that bring a small model."""


def oracle_backends(kind: Kind) -> Mapping[str, Backend]:
    """The toy, or the torch backend in fp64: arithmetic in which a batch changes no token."""
    if not kind.architecture:
        config, surprise = toy_config(context_length=CONTEXT), 200
        if kind.family == "diffusion":
            block = 4 if kind.attention == "block" else 0
            config = toy_config(29, CONTEXT, kind.attention, block, kind.shift, masked=True)
            surprise = 700  # Masks all look alike: let more depend on what is around them.
        # Draft models have a mask token, for methods that draft on masks.
        config_of_draft = replace(config, mask_token=config.vocab_size - 1)
        draft = ToyBackend(config_of_draft, seed=1, surprise=surprise)
        return {TARGET: ToyBackend(config, surprise=surprise), DRAFT: draft}
    return {
        TARGET: open_backend("torch", *checkpoint(kind), dtype="fp64", threads=1),
        DRAFT: open_backend("torch", *checkpoint(kind, blur=0.05), dtype="fp64", threads=1),
    }


@cache
def checkpoint(kind: Kind, blur: float = 0.0) -> tuple[ModelConfig, Weights]:
    """A tiny random model.

    Args:
        blur: relative noise, for a draft model that often agrees; it has a mask token, too.
    """
    config, weights = tiny_checkpoint(kind.architecture, near_tie=kind.near_tie)
    config = replace(config, context_length=CONTEXT)
    if not blur:
        return config, weights
    config = replace(config, mask_token=config.vocab_size - 1)
    random = np.random.default_rng(1)
    noisy = {}
    for name in config.tensors():
        values = weights[name].float32()
        noise = random.standard_normal(values.shape, np.float32)
        noisy[name] = Tensor(values * (1 + np.float32(blur) * noise), values.shape)
    return config, noisy
