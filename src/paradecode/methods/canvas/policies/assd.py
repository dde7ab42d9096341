"""Any-subset decoding from left to right: the model drafts several tokens and verifies them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from paradecode.core.decoder import Reply, Steps, TokenSequence
from paradecode.methods.canvas.canvas import NOTHING, Canvas, Decision
from paradecode.methods.canvas.forwards import ordered
from paradecode.methods.canvas.loop import Unmask, policy
from paradecode.methods.canvas.placed import place, read_placed
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.parts import parameter, text

EXACT = "it keeps the keys and values of what is decided, which are final: leave cache=none"


@dataclass
class ChainByChain(Unmask):
    """The loop of :class:`AnySubset`: one forward drafts the next masks, a second verifies them."""

    policy: AnySubset

    def decode(self, seq: TokenSequence) -> Steps:
        canvas = self.begin(seq)
        given = ~canvas.masked
        while not seq.finished:
            window = self.blocks.window(canvas)
            masks = window.start + np.flatnonzero(canvas.masked[window.start : window.end])
            known = np.flatnonzero(~canvas.masked & ~canvas.final)
            chain = masks[: self.policy.tokens]
            reply: Reply = yield ordered(canvas, given, known, canvas.tokens[known], chain)
            canvas.stored[known] = canvas.tokens[known]
            view = self.narrow(self.read(window, False, chain, reply.logits))
            chain = chain[chain < view.window.end]
            drafted = view.proposals[: len(chain)]
            self.commit(view, Decision(chain[:1]))  # Its draft is already exact.
            if len(chain) == 1 or seq.finished:
                continue
            reply = yield ordered(canvas, given, chain[:-1], drafted[:-1], chain[1:])
            for row, position in enumerate(chain[1:]):
                one = self.read(window, False, np.array([position]), reply.logits.select([row]))
                self.commit(one, Decision(one.positions))
                if seq.finished or one.proposals[0] != drafted[row + 1]:
                    break
            right = chain[:-1][canvas.tokens[chain[:-1]] == drafted[:-1]]
            canvas.stored[right] = canvas.tokens[right]


@policy(
    "assd",
    paper="Reviving Any-Subset Autoregressive Models with Principled Parallel Sampling and "
    "Speculative Decoding",
    arxiv="2504.20456",
    aliases=("any-subset",),
    driver=ChainByChain,
)
class AnySubset(Policy):
    """Draft the next masks at once, and verify them by the model's own density, in two forwards.

    The masks are decided from left to right. The token of a mask depends on the prompt, on the
    ``placed`` tokens, and on the tokens to its left. In the first forward pass each mask is a row
    that attends to these tokens. (In models with shifted logits, the row before the mask is used.)
    In the second forward each drafted token is a row that does not attend to later tokens. Its
    logits give the distribution from which the next drafted token should have come. With every seed
    the text is the same as with ``tokens=1``, token by token, and takes no more forwards than
    tokens.

    Rows also attend to text to the right of a mask (``placed``). Then sums are computed in another
    order, so on a real backend the text is equal up to rounding; otherwise it is equal exactly.
    With causal attention the text is also the same as from ``static(block_length=1)``.

    When: the model was trained for such a density (``paradecode train assd``), or has causal
    attention. Other models were trained on masks that attend to one another, and write worse text.
    """

    clashes = MappingProxyType({"cache=*": EXACT})

    tokens: int = parameter(5, 1, 64, "masks that are drafted together; 1 is plain decoding")
    placed: str = text(read_placed, "tokens placed beforehand: '0:523 88, 40:9'")

    def start(self, canvas: Canvas) -> None:
        if canvas.shift:  # This row speaks for the first mask, which is not to see it twice.
            canvas.stored[canvas.start - 1] = NOTHING
        place(canvas, self.placed, "assd.placed")
