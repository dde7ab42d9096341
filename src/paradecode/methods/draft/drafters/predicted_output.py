"""Predicted output: the caller says what the answer will probably be."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.alignment import Alignment
from paradecode.methods.draft.drafters.input_copy import InputCopy
from paradecode.methods.draft.method import drafter
from paradecode.methods.parts import parameter


@drafter(
    "predicted-output",
    paper="Predicted Outputs (OpenAI API); aggressive decoding, arXiv 2205.10350",
    url="https://platform.openai.com/docs/guides/predicted-outputs",
    aliases=("prediction", "predicted-outputs"),
)
@dataclass
class PredictedOutput(InputCopy):
    """Draft from the ``prediction`` that came with the request, and find it again after edits.

    For an answer that is a known text with changes: a file after an edit, a form filled in. Without
    a prediction the prompt takes its place. ``predicted-output+prompt-lookup`` uses both.

    When: the client has most of the answer already. A prediction that is wrong costs little, for
    the budget soon stops drafting from it.
    """

    max_ngram: int = parameter(4, 1, 16, "most output tokens that find the place again")

    def _align(self, seq: TokenSequence) -> Alignment:
        if seq.prediction is None:
            return super()._align(seq)
        return Alignment(seq.prediction, self.max_ngram, 0)
