"""Masks or placeholders behind the known tokens, which a retrained causal model reads."""

from __future__ import annotations

import numpy as np

from paradecode.core.decoder import Forward, ModelFacts, Reply, Steps, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
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


# Lexical units: placeholders behind the text predict the tokens after the next one as well.


@method(
    "lud",
    guarantee="lossy",
    training="paradecode train lud",
    paper="Lexical Unit Decoding",
    arxiv="2405.15208",
)
class LexicalUnits:
    """A model that was trained for it writes a run of sure tokens in one forward.

    Placeholders stand behind the text, and each says the token after its place. The first token is
    always kept; each of the others is kept if the ones before it are, and the model gives it at
    least ``threshold``. Nothing verifies them. Kept tokens are fed again in the next forward, with
    their true keys and values; those of placeholders are dropped.

    The paper's abstract says what is trained and what is gained. Thresholds, the end of a unit (a
    placeholder that says "placeholder") and the rule that a placeholder does not repeat the token
    before it are our reading.

    When: the model was made by ``paradecode train lud``, its texts have runs of tokens that follow
    from one another, and a loss may be measured and borne.
    """

    placeholders: int = parameter(4, 0, 16, "placeholders behind the text; 0 is plain decoding")
    threshold: float = parameter(0.9, 0.0, 2.0, "least probability of the others; above 1 none")

    def decode(self, seq: TokenSequence) -> Steps:
        facts = seq.about()
        mask = facts.mask_token
        if mask is None or facts.attention != "causal":
            fix = "it has no placeholder: use a model that `paradecode train lud` has made"
            raise InvalidInput("model", facts.name, fix)
        while not seq.finished:
            count = min(self.placeholders, seq.room - 1, seq.scratch)
            chain = TokenTree.chain(np.full(count, mask, np.int32))
            reply = yield Forward(seq.pending, tree=chain)
            seq.commit(self.unit(seq, reply.logits, mask))

    def unit(self, seq: TokenSequence, logits: Logits, mask: int) -> Verdict:
        """The first token, and the tokens behind it that the model is sure of."""
        sampler, rows = seq.sampler, logits.shape[0]
        banned = np.array([mask], np.int32), np.array([-np.inf], np.float32)
        usable = logits.with_bias([banned] * rows)
        greedy = usable.argmax() if sampler.plain else None
        tokens: list[int] = []
        while len(tokens) < rows and not (tokens and tokens[-1] in sampler.stop_ids):
            row = len(tokens)
            follows = sampler.token_behind
            token = follows(usable, row, tokens) if greedy is None else int(greedy[row])
            if token is None:
                break
            tokens.append(token)
        # The placeholder's own probability counts: it says that the unit ends here.
        given = logits.select(range(len(tokens))).log_probability(np.array(tokens)[:, None])
        sure = np.exp(given[:, 0]) >= self.threshold
        kept = 1
        while kept < len(tokens) and sure[kept] and tokens[kept] != tokens[kept - 1]:
            kept += 1
        return Verdict(tokens[:kept], list(range(kept)), logits)
