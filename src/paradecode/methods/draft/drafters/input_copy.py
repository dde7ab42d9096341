"""Input-guided aggressive decoding: the rest of the input is the draft."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.decoder import TokenSequence
from paradecode.methods.draft.alignment import Alignment
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parts import parameter


@drafter(
    "input-copy",
    paper="Lossless Acceleration for Seq2seq Generation with Aggressive Decoding",
    arxiv="2205.10350",
    aliases=("iad", "aggressive-decoding", "input-guided"),
)
@dataclass
class InputCopy(ModelFree):
    """Copy on from the place in the prompt that the output has reached (Ge 2022).

    For tasks whose output repeats most of the input: correction, editing, translation of code.
    Where the output departs from the prompt, the place is found again by its last tokens. The
    prompt holds more than the input proper, so nothing is drafted before the first output token.

    When: the output is the input in the same order with few changes: correction, formatting, edits.
    ``prompt-lookup`` finds these copies as well, and others.
    """

    group = "alignment"
    needs = Needs(rests=True)

    max_ngram: int = parameter(3, 1, 16, "most output tokens that find the place again")
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
