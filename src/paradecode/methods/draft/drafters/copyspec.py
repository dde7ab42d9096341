"""CopySpec: copy what followed the first occurrence of the last few tokens."""

from __future__ import annotations

from dataclasses import field

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.history import evidence
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import parameter

_LONGEST = 16


@drafter(
    "copyspec",
    paper="CopySpec: Accelerating LLMs with Speculative Copy-and-Paste",
    arxiv="2502.08923",
    aliases=("copy-spec",),
    names={"number_copy": "num_speculative_tokens"},
)
class CopySpec(ModelFree):
    """Copy from where the last gamma tokens first occurred in the conversation (Dumitru 2025).

    The paper finds a window of gamma tokens by a rolling hash; a table of all windows finds the
    same positions. Earlier turns are part of the prompt, so an answer that varies an earlier one is
    copied from it. If nothing is found there is no draft. The paper then asks a draft model, which
    is what ``copyspec+...`` does here.

    When: answers that vary an earlier turn of the conversation, or quote at length. It drafts
    seldom and is then mostly right.
    """

    group = "copying"
    needs = Needs(rests=True)

    gamma: int = parameter(3, 1, 64, "number of tokens that must agree")
    _first: dict[bytes, int] = field(default_factory=dict, repr=False)
    _entered: int = field(default=0, repr=False)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        tokens, gamma = seq.tokens, self.gamma
        for end in range(max(self._entered, gamma), len(tokens)):  # The last one is only looked up.
            self._first.setdefault(tokens[end - gamma : end].tobytes(), end)
        self._entered = len(tokens)
        start = self._first.get(tokens[-gamma:].tobytes())
        if start is None:
            return
        text, matched, most = tokens.tolist(), gamma, min(start, _LONGEST)
        while matched < most and text[start - matched - 1] == text[-matched - 1]:
            matched += 1
        kinds = (evidence(matched + depth, 1.0) for depth in range(limit))
        draft.rate_chain(text[start : start + limit], kinds)
