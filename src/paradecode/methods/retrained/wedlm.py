"""Methods for retrained causal models that read masks or placeholders after the known tokens."""

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

    The window begins at the first mask after the text. A forward pass reads the window's known
    tokens before its masks, each at its own position. Every mask thus attends to all known tokens,
    and attention stays causal.

    A mask is filled if its entropy, plus ``distance`` for each position after the first mask, is
    below ``entropy``. If no mask qualifies, the one with the lowest sum is filled. Tokens before
    the first mask become text. The next forward begins with them and stores their keys and values,
    as plain decoding does, so later requests can share them.

    Entropies leave out the mask token and tokens that a constraint forbids. Text is shown as soon
    as it is filled; the paper's code waits for the forward that stores it. There are no masks
    beyond ``max_tokens``.

    When: the model is a WeDLM, or was made by ``paradecode train wedlm``.
    """

    window: int = parameter(16, 1, 4096, "positions of the window, from the first mask on")
    entropy: float = parameter(
        0.4, 0.0, 64.0, "entropy in nats below which a mask is filled; 0: one a forward"
    )
    distance: float = parameter(0.02, 0.0, 64.0, "nats added to the entropy for each later place")

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
    """Raise InvalidInput if the model is not causal or its masks predict other positions."""
    if facts.attention != "causal" or facts.mask_token is None or facts.shift:
        fix = "wedlm is for causal models whose masks say their own positions: a WeDLM, or what "
        raise InvalidInput("model", facts.name, f"{fix}`paradecode train wedlm` has made")


# Lexical units: placeholders after the text predict more tokens than the next one.


@method(
    "lud",
    guarantee="lossy",
    training="paradecode train lud",
    paper="Lexical Unit Decoding",
    arxiv="2405.15208",
)
class LexicalUnits:
    """A model that was trained for this method writes a run of sure tokens in one forward pass.

    Placeholders stand after the text, and each predicts the token after its position. The first
    predicted token is always kept. Every other token is kept if all tokens before it are kept and
    its probability is at least ``threshold``. Nothing verifies the tokens.

    The next forward reads the kept tokens again and stores their true keys and values. Keys and
    values of placeholders are dropped.

    The paper's abstract states the training and the gain. Three things are our reading: the
    thresholds, a placeholder that predicts "placeholder" as the end of a unit, and the rule that a
    placeholder does not repeat the token before it.

    When: the model was made by ``paradecode train lud``, its texts have runs of predictable tokens,
    and some loss of quality can be measured and accepted.
    """

    placeholders: int = parameter(4, 0, 16, "placeholders behind the text; 0 is plain decoding")
    threshold: float = parameter(0.9, 0.0, 2.0, "least probability of later tokens; above 1: none")

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
        """Return the first token, and the tokens after it that the model is sure of.

        ``logits`` [rows, V] come from the last token and the placeholders; ``mask`` is the
        placeholder's token id.
        """
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
