"""A sequence's tokens in the spelling of a model that has another vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.vocabulary import Vocabulary


class Translation:
    """The tokens so far, kept up to date."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._read = 0
        self._tokens = np.empty(0, np.int32)

    def follow(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32: all of ``tokens``, which begin with those of the last call, translated."""
        if len(tokens) > self._read:
            new = self.vocabulary.translate(tokens[self._read :])
            self._tokens = np.concatenate([self._tokens, new])
            self._tokens.flags.writeable = False
            self._read = len(tokens)
        return self._tokens

    def length(self, tokens: NDArray[np.int32]) -> int:
        """How many of the model's tokens spell ``tokens``."""
        starts = self.vocabulary.starts
        return int((starts[tokens + 1] - starts[tokens]).sum())
