"""A toy pair of target and draft model without PyTorch, and heads and selectors for it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from engines import served
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.budgets.networks import SCALARS, ResidualHead, TreeSelector, choices
from paradecode.methods.draft.budgets.shapes import Action
from paradecode.testing.toy import WIDTH, ToyBackend, toy_config

PROMPTS = ((5, 6, 7, 8, 9, 5, 6), (11, 12, 13, 11), (20, 21, 7, 3))


def pair() -> Engine:
    """Return an engine with two toy models that agree on most tokens.

    Their hidden states have ``WIDTH`` numbers.
    """
    config = toy_config(context_length=160)
    models = {TARGET: ToyBackend(config), DRAFT: ToyBackend(config, seed=1)}
    return Engine(models, Limits(batch=4, kv_tokens=4096))


def front(engine: Engine) -> Any:
    """Return an object with the parts of an LLM that recordings need: its engine."""
    return SimpleNamespace(engine=engine)


def serve(
    engine: Engine, spec: Any, prompts: Sequence[Sequence[int]] = PROMPTS, **params: Any
) -> list[LiveSequence]:
    settings = {"max_tokens": 40, "ignore_eos": True, "seed": 1, **params}
    return served(engine, [(spec, prompt, settings) for prompt in prompts])


def head(width: int = WIDTH, logit: float = 0.0, blocks: int = 0, reads: str = "states", seed=0):
    """Return a head that always gives ``logit``; with ``blocks``, its weights are random."""
    random = np.random.default_rng(seed)
    size = 1.0 if blocks else 0.0
    out = size * random.standard_normal(width + 1)
    out[-1] += logit
    tensors = {
        "mean": size * random.standard_normal(width), "scale": np.ones(width),
        "weight": size * random.standard_normal((width, width)),
        "bias": size * random.standard_normal(width), "out": out,
    }  # fmt: skip
    facts = {"reads": reads, "width": width, "blocks": blocks}
    return ResidualHead(facts, {name: t.astype(np.float32) for name, t in tensors.items()})


def selector(
    count: int, action: Action | None = None, width: int = WIDTH, seed: int = 0
) -> TreeSelector:
    """Return a random selector; with ``action``, one that always prefers this action."""
    random = np.random.default_rng(seed)
    size = 0.3 if action is None else 0.0
    facts = {"count": count, "scalars": [*SCALARS], "p_before": width, "q_now": width}
    tensors = {
        name: (size * random.standard_normal(shape)).astype(np.float32)
        for name, shape in TreeSelector(facts, {}).shapes().items()
    }
    if action is not None:
        tensors["out.bias"][choices(count).index(action)] = 1.0
    return TreeSelector(facts, tensors)
