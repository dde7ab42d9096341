"""CopySpec: copy what followed the first occurrence of the last few tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.history import evidence
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import parameter

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
class CopySpec(ModelFree):
    """Copy from where the last gamma tokens first occurred in the conversation (Dumitru 2025).

    A rolling hash of each window of gamma tokens leads to its first occurrence; what stands there
    is compared, so a collision costs nothing. Earlier turns are part of the prompt, so an answer
    that varies an earlier one is copied from it. Where nothing is found there is no draft; the
    paper then asks a draft model, which is what ``copyspec+...`` says here.

    When: answers that vary an earlier turn of the conversation, or quote at length. It drafts
    seldom and is then mostly right.
    """

    group = "copying"
    needs = Needs(rests=True)

    gamma: int = parameter(3, 1, 64, "how many tokens must agree")
    _first: dict[int, int] = field(default_factory=dict, repr=False)
    _hash: int = field(default=0, repr=False)
    _hashed: int = field(default=0, repr=False)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        text = seq.tokens.tolist()
        self._enter(text)
        start = self._first.get(self._hash, len(text))
        if start == len(text) or text[start - self.gamma : start] != text[-self.gamma :]:
            return
        matched = self.gamma
        most = min(start, _LONGEST)
        while matched < most and text[start - matched - 1] == text[-matched - 1]:
            matched += 1
        kinds = (evidence(matched + depth, 1.0) for depth in range(limit))
        draft.rate_chain(text[start : start + limit], kinds)

    def _enter(self, text: list[int]) -> None:
        """Hash up to the end of the text; the last window is looked up, but not entered yet."""
        leaving = pow(_BASE, self.gamma, _MASK + 1)
        for end in range(self._hashed, len(text)):
            if end > self.gamma - 1 and end > 0:
                self._first.setdefault(self._hash, end)
            self._hash = (self._hash * _BASE + text[end] + 1) & _MASK
            if end >= self.gamma:
                self._hash = (self._hash - (text[end - self.gamma] + 1) * leaving) & _MASK
        self._hashed = len(text)
