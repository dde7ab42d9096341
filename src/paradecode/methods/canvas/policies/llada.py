"""The sampler of LLaDA and two of its options. One token per forward is the reference method."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from paradecode.core.decoder import Forward, Guarantee, Reply, Store
from paradecode.core.logits import Bias, Logits
from paradecode.methods.canvas.caches.base import RowPlan
from paradecode.methods.canvas.canvas import Decision, View, Window
from paradecode.methods.canvas.loop import Unmask, policy
from paradecode.methods.canvas.policies.base import NAMES, SCORES, Policy, Wrapper, quota, scores_of
from paradecode.methods.parts import choice, parameter


def guarantee(settings: Mapping[str, Any]) -> Guarantee:
    """Return ``exact`` for settings with one token per forward, the best first, else ``lossy``."""
    usual = settings.get("steps", 0) == 0 and settings.get("score", "confidence") in (
        "confidence", "low_confidence", "maskgit_plus",
    )  # fmt: skip
    return "exact" if usual else "lossy"


@policy(
    "static",
    paper="Large Language Diffusion Models",
    arxiv="2502.09992",
    aliases=("llada", "low-confidence", "reference"),
    names={"remasking": "score", "alg": "score"},
    guarantee="exact",
    under=guarantee,
)
class Static(Policy):
    """Commit the best-scored positions, as many in each forward pass as `steps` asks for.

    Without ``steps`` each forward commits one: this is the reference for all other policies.

    When: as the reference; with ``steps``, for the models' own trade of forwards against quality.
    """

    score: str = choice("confidence", (*SCORES, *NAMES), "score that ranks the positions")

    def decide(self, view: View) -> Decision:
        return Decision(view.best(scores_of(view, self.score), quota(view.progress)))


# A policy that decides the end of a text last: an option of LLaDA's sampler.


@policy(
    "late-end",
    paper="Large Language Diffusion Models",
    arxiv="2502.09992",
    aliases=("confidence_eos_eot_inf",),
)
class LateEnd(Wrapper):
    """A proposed end of text has no confidence, so it is decided after everything else.

    In long canvases LLaDA-8B and LLaDA 1.5 are too sure of an early end. Their sampler has another
    option that never proposes an end (``logits_eos_inf``); to get the same here, set ``min_tokens``
    of the request to ``max_tokens``.

    When: answers of LLaDA end too early, or are empty. It can stand on any policy that ranks by
    confidence.
    """

    def decide(self, view: View) -> Decision:
        ends = np.isin(view.proposals, np.array(view.canvas.stops, np.int32))
        return self.inner.decide(replace(view, confidence=np.where(ends, -1.0, view.confidence)))


# Classifier-free guidance: an option of LLaDA's sampler.


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
        return replace(view, raw=replies[0].logits)  # Reports show the model's own logits.


def _guided(given: Logits, without: Logits, scale: float) -> Logits:
    """Return ``without + (scale + 1) * (given - without)``, as [K, V].

    Entries of ``given`` that are not finite stay unchanged.
    """
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
class Guided(Wrapper):
    """Decide from logits that are moved away from the logits of a canvas with a masked prompt.

    The logits are u + (scale + 1)(c - u), where c are the logits with the prompt and u the logits
    without it (LLaDA's ``cfg_scale``; Nie et al. 2024, arXiv 2410.18514). Every forward pass has
    twice the rows.

    When: the answer should keep closer to the prompt, and twice the cost does not matter.
    """

    clashes = MappingProxyType(
        {"cache=*": "the forward without the prompt has other keys and values; use none"}
    )

    scale: float = parameter(1.0, 0.0, 100.0, "how far logits are moved away; 0: without guidance")
