"""A branch that ends where a step of its output ends: at a text that it writes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from paradecode.core.decoder import Decoder, Steps, TokenSequence
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.engine.sequence import LiveSequence
from paradecode.models.text_stream import OutputText


class StepText(OutputText):
    """An output's text that also ends with a mark, if the mark was completed after this object was
    made.

    A mark stays in the text, unlike a stop text, because the next step continues behind it.

    Attributes:
        marked: whether a mark ended the text.
    """

    def __init__(self, before: OutputText, marks: Sequence[str]) -> None:
        vars(self).update(vars(before))
        self._ends = before._ends[:]
        self._marks, self._longest_mark = marks, max(map(len, marks))
        self._start = self._sent = len(before.value)  # All before was shown with what wrote it.
        self.marked = False

    def push(self, token: int) -> bool:
        searched = max(self._start, len(self.value) - self._longest_mark + 1)
        stopped = super().push(token)
        self.marked = not stopped and any(self.value.find(m, searched) >= 0 for m in self._marks)
        return stopped or self.marked


@dataclass(frozen=True)
class StepDecoder:
    """A method that decodes to the end of a step.

    Attributes:
        decoder: makes the method.
        marks: texts that end a step.
    """

    decoder: Callable[[], Decoder]
    marks: tuple[str, ...]

    def __call__(self) -> StepDecoder:
        return self

    def decode(self, seq: TokenSequence) -> Steps:
        assert isinstance(seq, LiveSequence)
        seq.text = StepText(seq.text, self.marks)
        reply: Any = None
        with closing(self.decoder().decode(seq)) as method:
            while True:
                try:
                    asked = method.send(reply)
                except StopIteration:
                    return
                # A backend that makes several steps by itself would not see a mark.
                reply = StepsMade() if isinstance(asked, MultiStep) else (yield asked)
