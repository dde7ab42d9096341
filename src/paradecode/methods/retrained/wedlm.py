"""Masks behind the known tokens, at any positions: diffusion with causal attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import Forward, ModelFacts, Reply, Steps, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.methods.canvas.block_rules import Blocks
from paradecode.methods.canvas.caches.base import CacheRule
from paradecode.methods.canvas.canvas import Decision, View, Window
from paradecode.methods.canvas.loop import Unmask, decided
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.parts import method, parameter


@method(
    "wedlm",
    family="diffusion",
    guarantee="lossy",
    training="paradecode train wedlm",
    paper="WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention for Fast "
    "Inference",
    arxiv="2512.22737",
    names={
        "wedlm_window_size": "window", "wedlm_entropy_threshold": "entropy",
        "wedlm_pos_penalty_factor": "distance",
    },
)  # fmt: skip
@dataclass
class Wedlm(Policy):
    """Fill a window of masks in any order, with causal attention and the cache of plain decoding.

    The window begins with the first mask behind the text. In a forward its known tokens stand in
    front of its masks, each at its own position, so that every mask sees all that is known and the
    attention stays causal. Masks are filled whose entropy, plus ``distance`` for each position
    after the first mask, is below the threshold; if there is none, the one with the least. Tokens
    before the first mask are text: they run at the head of the next forward, and what it stores of
    them are the keys and values of plain decoding, which later requests share.

    Entropies are of what may be chosen: not of the mask token, or of what a constraint forbids.
    A text is shown when it is filled; the paper's code waits for the forward that stores it. Masks
    end with ``max_tokens``.

    When: the model is a WeDLM, or was made by ``paradecode train wedlm``.
    """

    window: int = parameter(16, 1, 4096, "positions from the first mask on")
    entropy: float = parameter(
        0.4, 0.0, 64.0, "nats below which a mask is filled; 0: one a forward"
    )
    distance: float = parameter(0.02, 0.0, 64.0, "nats added for each position after the first")

    def decode(self, seq: TokenSequence) -> Steps:
        check(seq.about())
        loop = Unmask(self, Blocks(), CacheRule())
        canvas = loop.begin(seq)
        while not seq.finished:
            window = Window(canvas.edge, min(canvas.edge + self.window, canvas.end))
            inside = np.arange(window.start, window.end)
            masks, known = inside[canvas.masked[inside]], inside[~canvas.masked[inside]]
            ordered = np.concatenate([known, masks]).astype(np.int32)
            rows = TokenTree.chain(canvas.tokens[ordered])
            text = seq.pending
            reply: Reply = yield Forward(text, tree=rows, places=ordered)
            behind = np.arange(len(masks)) + len(known) + (len(text) > 0)
            view = loop.read(window, False, masks, reply.logits.select(behind.tolist()))
            loop.commit(view, (yield from decided(self, view)))

    def decide(self, view: View) -> Decision:
        doubt = view.entropy + self.distance * (view.positions - view.positions[0])
        sure = doubt < self.entropy
        return Decision(view.positions[sure if sure.any() else [doubt.argmin()]])


def check(facts: ModelFacts) -> None:
    """Raise InvalidInput unless the model is causal and its masks predict their own positions."""
    if facts.attention != "causal" or facts.mask_token is None or facts.shift:
        fix = "wedlm is for causal models whose masks say their own positions: a WeDLM, or what "
        raise InvalidInput("model", facts.name, f"{fix}`paradecode train wedlm` has made")
