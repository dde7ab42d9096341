"""Lexical units: placeholders behind the text predict the tokens after the next one as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.parts import method, parameter


@method(
    "lud",
    guarantee="lossy",
    training="paradecode train lud",
    paper="Lexical Unit Decoding",
    arxiv="2405.15208",
)
@dataclass
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
