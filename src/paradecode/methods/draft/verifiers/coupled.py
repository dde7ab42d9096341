"""Coupled verification: compare the draft with the tokens that plain decoding would emit.

The native core does the same in ``csrc/steps.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT, Mode, TokenTree
from paradecode.methods.parts import declare


class Verifier:
    """Base class of verifiers, which accept draft tokens and choose the token after them.

    A verifier is a dataclass with settings.

    Attributes:
        modes: the sampling modes of trees whose distribution q the verifier uses, its preferred
            mode first. For other modes it falls back to a rule that is exact for them. Empty if it
            does not matter how a tree was made.
        shares_noise: True if drafts may use the random numbers with which the target samples.
        multi_step: True if a backend that makes several steps at once verifies by this rule.
    """

    modes: ClassVar[tuple[Mode, ...]] = ()
    shares_noise: ClassVar[bool] = False
    multi_step: ClassVar[bool] = False

    @property
    def reads_draws(self) -> bool:
        """True if the rule tests p against the distribution q from which nodes were sampled."""
        return bool(self.modes)

    def __call__(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        """Return the verdict on a tree.

        Row 0 of the reply's logits follows the last committed token, and row i + 1 follows node i.
        """
        raise NotImplementedError


@declare("verifier", "coupled", paper="Gumbel coupling of draft and target", arxiv="2408.07978")
@dataclass(frozen=True)
class Coupled(Verifier):
    """Accept the tokens of plain decoding, at any temperature.

    The token after each accepted node is argmax(log p + random numbers of that position), or the
    bare argmax at temperature 0. A child is accepted if it has that token. The output is the plain
    output, token by token, at any temperature. At temperature 0 this is greedy verification (Stern
    et al. 2018, arXiv 1811.03115, over trees).
    """

    shares_noise: ClassVar[bool] = True
    multi_step: ClassVar[bool] = True

    def __call__(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        sampler, logits = seq.sampler, reply.logits
        greedy = logits.argmax() if sampler.plain else None
        node: int | None = ROOT
        tokens: list[int] = []
        rows: list[int] = []
        while node is not None:
            row = node + 1
            follows = sampler.token_behind
            token = follows(logits, row, tokens) if greedy is None else int(greedy[row])
            if token is None:
                break
            tokens.append(token)
            rows.append(row)
            node = tree.child(node, token)
        return Verdict(tokens, rows, logits)


coupled = Coupled()


@declare("verifier", "greedy", paper="Blockwise Parallel Decoding", arxiv="1811.03115")
class GreedyVerifier(Verifier):
    """Accept draft tokens that are the target's argmax; temperature 0 only."""

    def __call__(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        if seq.sampler.warp.temperature > 0.0:
            raise InvalidInput(
                "verifier", "greedy", "use coupled or another sampling verifier at temperature > 0"
            )
        return coupled(seq, tree, reply)
