"""CopySpec: copy what followed the first occurrence of the last few tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.growth import Trie
from paradecode.methods.draft.history import EVIDENCE, evidence
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import parameter

_BASE = 0x100000001B3
_MASK = (1 << 64) - 1
_LONGEST = 16


@drafter(
    "copyspec",
    paper="CopySpec: Accelerating LLMs with Speculative Copy-and-Paste",
    arxiv="2502.08923",
    aliases=("copy-spec",),
    names={"number_copy": "num_speculative_tokens"},
)
@dataclass
class CopySpec(Drafter):
    """Copy from where the last gamma tokens first occurred in the conversation (Dumitru 2025).

    A rolling hash of each window of gamma tokens leads to its first occurrence; what stands there
    is compared, so a collision costs nothing. Earlier turns are part of the prompt, so an answer
    that varies an earlier one is copied from it. Where nothing is found there is no draft; the
    paper then asks a draft model, which is what ``copyspec+...`` says here.

    When: answers that vary an earlier turn of the conversation, or quote at length. It drafts
    seldom and is then mostly right.
    """

    gamma: int = parameter(3, 1, 64, "how many tokens must agree")
    _first: dict[int, int] = field(default_factory=dict, repr=False)
    _hash: int = field(default=0, repr=False)
    _hashed: int = field(default=0, repr=False)
    _odds: Odds = field(default_factory=lambda: Odds(EVIDENCE), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        text = seq.tokens.tolist()
        self._enter(text)
        self._draft = Trie()
        start = self._first.get(self._hash, len(text))
        if start == len(text) or text[start - self.gamma : start] != text[-self.gamma :]:
            return EMPTY
        matched = self.gamma
        most = min(start, _LONGEST)
        while matched < most and text[start - matched - 1] == text[-matched - 1]:
            matched += 1
        kinds = (evidence(matched + depth, 1.0) for depth in range(limit))
        self._draft.chain(text[start : start + limit], kinds, self._odds)
        return self._draft.tree()
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.book(self._odds, tree, verdict)

    def _enter(self, text: list[int]) -> None:
        """Hash on to the end of the text; the last window is looked up, but not entered yet."""
        leaving = pow(_BASE, self.gamma, _MASK + 1)
        for end in range(self._hashed, len(text)):
            if end > self.gamma - 1 and end > 0:
                self._first.setdefault(self._hash, end)
            self._hash = (self._hash * _BASE + text[end] + 1) & _MASK
            if end >= self.gamma:
                self._hash = (self._hash - (text[end - self.gamma] + 1) * leaving) & _MASK
        self._hashed = len(text)
