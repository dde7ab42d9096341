"""Training of heads whose rows pass the target's layers: a step takes a part of each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paradecode.models.heads import HeadFile
from paradecode_lab.training.heads.objective import HeadBatch
from paradecode_lab.training.heads.texts import HeadText
from paradecode_lab.training.heads.training import HeadTraining

WINDOW, SHOWN = 32, 64
"""Tokens of an answer that one step trains on, and tokens of a held-out text that are evaluated."""


class RowTraining(HeadTraining):
    """A head of rows that is being trained; see ``RowNetwork``."""

    def stored(self) -> HeadFile:
        whole = {n: t for n, t in self._file.tensors.items() if t.dtype.kind != "f"}
        made = {n: t.astype(np.float16) for n, t in self.head.stored().items()}
        return replace(self._file, tensors=whole | made)

    def _batch(self, wanted: Sequence[int]) -> HeadBatch:
        texts = [self._part(number) for number in wanted]
        kept = zip(self.features.of(wanted), texts)
        return self.batch(texts, [states[: len(text.tokens)] for states, text in kept])

    def _part(self, number: int) -> HeadText:
        text = self.features.texts[number]
        begin, end = text.start, text.start + SHOWN
        if number >= self._first:
            random = np.random.default_rng((self.plan.seed, self.step, number))
            begin += int(random.integers(max(len(text.tokens) - begin - WINDOW, 1)))
            end = begin + WINDOW
        return HeadText(text.tokens[:end], begin, text.greedy)
