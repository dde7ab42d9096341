"""Drafters that copy from a source text: the prompt, or a prediction that came with the request."""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import parameter

LOST, SUPPOSED, AMBIGUOUS, FOUND, FOLLOWING, STEADY = range(6)
"""Kinds of evidence that a position in the source is the right one to copy from, weakest first."""


class Alignment:
    """Follows the position in ``source`` that the output has reached.

    Input-guided aggressive decoding (Ge et al. 2022, arXiv 2205.10350): as long as the output
    copies the source, the position moves on. After the output departs from the source, the last n
    output tokens are searched in the source. The smallest n up to ``max_ngram`` with exactly one
    occurrence gives the new position.

    Two rules are not in the paper. If the tokens occur several times, the first occurrence after
    the old position is taken, or else the last occurrence. If they do not occur, the output is
    assumed to have replaced one token of the source.

    Args:
        source: int32 [s], token ids.
        max_ngram: the most tokens that are compared.
        start: the first position, or None if the output may begin to copy anywhere.
    """

    def __init__(self, source: NDArray[np.int32], max_ngram: int, start: int | None) -> None:
        self.source, self.max_ngram = source, max_ngram
        self.reason = LOST if start is None else FOUND
        self.place = start or 0
        self._begun = start is not None
        self._copied = 0

    def advance(self, text: NDArray[np.int32], count: int) -> None:
        """Update the position after new output: the last ``count`` tokens of ``text``."""
        for end in range(len(text) - count + 1, len(text) + 1):
            known = self.reason != LOST and self.place < len(self.source)
            if known and self.source[self.place] == text[end - 1]:
                self._copied += 1
                self.place += 1
                self.reason = STEADY if self._copied > 3 else FOLLOWING
            else:
                self._copied = 0
                self._search(text[:end])

    def draft(self, limit: int) -> tuple[list[int], list[int]]:
        """Return at most ``limit`` next tokens of the source, and the kind of evidence for each.

        Both lists are empty if the position is lost. The evidence of each token assumes that the
        tokens before it are accepted.
        """
        if self.reason == LOST:
            return [], []
        tokens = self.source[self.place : self.place + limit].tolist()
        copied = range(self._copied, self._copied + len(tokens))
        reasons = [self.reason, *(FOLLOWING if count <= 3 else STEADY for count in copied[1:])]
        return tokens, reasons[: len(tokens)]

    def _search(self, text: NDArray[np.int32]) -> None:
        ends = np.flatnonzero(self.source == text[-1])
        for size in range(2, min(self.max_ngram, len(text)) + 1):
            if len(ends) < 2:
                break
            longer = ends[ends >= size - 1]
            longer = longer[self.source[longer - size + 1] == text[-size]]
            if len(longer) == 0:
                break
            ends = longer
        if len(ends) == 0:
            # The output has replaced one token, or has left the source.
            supposed = self.reason not in (LOST, SUPPOSED)
            self.reason = SUPPOSED if supposed else LOST
            self.place += supposed
            return
        ahead = ends[ends >= self.place] if self._begun else ends[:0]
        self._begun = True
        self.reason = FOUND if len(ends) == 1 else AMBIGUOUS
        self.place = int(ahead[0] if len(ahead) else ends[-1]) + 1


@drafter(
    "input-copy",
    paper="Lossless Acceleration for Seq2seq Generation with Aggressive Decoding",
    arxiv="2205.10350",
    aliases=("iad", "aggressive-decoding", "input-guided"),
)
class InputCopy(ModelFree):
    """Copy on from the place in the prompt that the output has reached (Ge 2022).

    This is for tasks whose output repeats most of the input: correction, editing, translation of
    code. If the output departs from the prompt, its last tokens are used to find the place again.
    The prompt contains more than the input proper, so nothing is drafted before the first output
    token.

    When: the output is the input in the same order with few changes: correction, formatting, edits.
    ``prompt-lookup`` finds these copies as well, and others.
    """

    group = "alignment"
    needs = Needs(rests=True)

    max_ngram: int = parameter(3, 1, 16, "most output tokens by which the place is found again")
    _alignment: Alignment | None = field(default=None, repr=False)
    _length: int = field(default=0, repr=False)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        if self._alignment is None:
            self._alignment, self._length = self._align(seq), seq.prompt_length
        self._alignment.advance(seq.tokens, len(seq.tokens) - self._length)
        self._length = len(seq.tokens)
        draft.rate_chain(*self._alignment.draft(limit))

    def _align(self, seq: TokenSequence) -> Alignment:
        return Alignment(seq.tokens[: seq.prompt_length].copy(), self.max_ngram, None)


# Predicted output: the client sends a text that the answer will probably resemble.


@drafter(
    "predicted-output",
    paper="Predicted Outputs (OpenAI API); aggressive decoding, arXiv 2205.10350",
    url="https://platform.openai.com/docs/guides/predicted-outputs",
    aliases=("prediction", "predicted-outputs"),
)
class PredictedOutput(InputCopy):
    """Draft from the ``prediction`` that came with the request, and find it again after edits.

    The method suits an answer that is a known text with changes: a file after an edit, a form
    filled in. Without a prediction it copies from the prompt. ``predicted-output+prompt-lookup``
    uses both.

    When: the client has most of the answer already. A prediction that is wrong costs little,
    because the budget soon stops drafting from it.
    """

    max_ngram: int = parameter(4, 1, 16, "most output tokens by which the place is found again")

    def _align(self, seq: TokenSequence) -> Alignment:
        if seq.prediction is None:
            return super()._align(seq)
        return Alignment(seq.prediction, self.max_ngram, 0)
