"""Classifier-free guidance: an option of LLaDA's sampler."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from paradecode.core.decoder import Forward, Reply, Store
from paradecode.core.logits import Bias, Logits
from paradecode.methods.canvas.caches.base import RowPlan
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.canvas.view import View, Window
from paradecode.methods.parts import parameter


class Guide(Unmask):
    """The loop that runs each canvas a second time with a masked prompt, in the same step."""

    policy: Guided

    def look(self, window: Window, plan: RowPlan) -> Generator[Any, Any, View]:
        forward, positions = self.ask(window, plan)
        canvas, scale = self.canvas, self.policy.scale
        if scale == 0:
            reply: Reply = yield forward
            return self.read(window, plan.refresh, positions, reply.logits)
        assert forward.positions is not None
        hidden = np.where(forward.positions < canvas.start, canvas.mask_token, forward.tokens)
        without: Forward = replace(forward, tokens=hidden.astype(np.int32), store=Store.NONE)
        replies: list[Reply] = yield [forward, without]
        logits = _guided(replies[0].logits, replies[1].logits, scale)
        view = self.read(window, plan.refresh, positions, logits)
        return replace(view, raw=replies[0].logits)  # Reports are of what the model itself says.


def _guided(given: Logits, without: Logits, scale: float) -> Logits:
    """``without + (scale + 1) * (given - without)``, as [K, V]; entries of ``given`` that are
    not finite stay."""
    rows, vocabulary = given.shape
    ids = np.arange(vocabulary, dtype=np.int32)
    every = np.tile(ids, (rows, 1))
    with np.errstate(invalid="ignore"):
        more = scale * (given.gather(every) - without.gather(every))
    more[~np.isfinite(more)] = 0
    biases: list[Bias | None] = [(ids, row) for row in more.astype(np.float32)]
    return given.with_bias(biases)


@policy(
    "guided",
    paper="Large Language Diffusion Models",
    arxiv="2502.09992",
    aliases=("cfg",),
    names={"cfg_scale": "scale"},
    driver=Guide,
)
@dataclass
class Guided(Wrapper):
    """Decide from logits that are moved away from those of a canvas whose prompt is masked.

    The logits are u + (scale + 1)(c - u), c those with the prompt and u those without (LLaDA's
    ``cfg_scale``; Nie et al. 2024, arXiv 2410.18514). Every forward has twice the rows.

    When: the answer should keep closer to the prompt, and twice the cost does not matter.
    """

    clashes = MappingProxyType(
        {"cache=*": "the forward without the prompt has other keys and values; use none"}
    )

    scale: float = parameter(1.0, 0.0, 100.0, "how far; 0: without guidance")
