"""A policy that decides the end of a text last: an option of LLaDA's sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.canvas.view import Decision, View


@policy(
    "late-end",
    paper="Large Language Diffusion Models",
    arxiv="2502.09992",
    aliases=("confidence_eos_eot_inf",),
)
@dataclass
class LateEnd(Wrapper):
    """A proposed end of text has no confidence, so it is decided after everything else.

    In long canvases LLaDA-8B and LLaDA 1.5 are too sure of an early end. Their sampler's other
    option, which never proposes an end (``logits_eos_inf``), is ``min_tokens`` of the request, as
    large as ``max_tokens``.

    When: answers of LLaDA end too early, or are empty. It can stand on any policy that ranks by
    confidence.
    """

    def decide(self, view: View) -> Decision:
        ends = np.isin(view.proposals, np.array(view.canvas.stops, np.int32))
        return self.inner.decide(replace(view, confidence=np.where(ends, -1.0, view.confidence)))
