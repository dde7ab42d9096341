"""Forecast from a few short training runs what more data or a larger head will bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput

# Quantiles 0.975 of Student's t distribution, for 1, 2, ... degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
FEWEST = 4


@dataclass(frozen=True)
class ShortRun:
    """The result of one short training run.

    Attributes:
        tokens: number of answer tokens that the head was trained on.
        parameters: number of the head's parameters.
        gain: mean number of tokens per forward on held-out texts, minus 1.
    """

    tokens: int
    parameters: int
    gain: float


@dataclass(frozen=True)
class Forecast:
    """The expected number of tokens per forward, with a 95 % prediction interval."""

    value: float
    low: float
    high: float


class ScalingLaw:
    """A fitted law: accepted tokens are linear in the logarithms of training tokens and parameters.

    The law is Scylla's (arXiv:2505.07858), and is fitted by least squares.

    Raises:
        InvalidInput: for fewer than FEWEST runs, or runs that do not differ both in tokens and in
            parameters.

    Attributes:
        gains: tokens per forward added by a doubling of the training tokens, and by a doubling of
            the parameters.
    """

    def __init__(self, runs: Sequence[ShortRun]) -> None:
        rows = np.array([self._row(run.tokens, run.parameters) for run in runs])
        if len(runs) < FEWEST or np.linalg.matrix_rank(rows) < 3:
            fix = f"give {FEWEST} or more, of different tokens and of different sizes"
            raise InvalidInput("runs", len(runs), fix)
        told = np.array([run.gain for run in runs])
        self._inverse = np.linalg.inv(rows.T @ rows)
        self._weights: NDArray[np.float64] = self._inverse @ rows.T @ told
        freedom = len(runs) - 3
        self._variance = float(np.square(told - rows @ self._weights).sum() / freedom)
        self._student = _STUDENT[min(freedom, len(_STUDENT)) - 1]
        self.gains = float(self._weights[1]), float(self._weights[2])

    def at(self, tokens: float, parameters: float) -> Forecast:
        """Return the forecast for a run that has as many steps as the short ones."""
        row = np.array(self._row(tokens, parameters))
        value = 1 + float(row @ self._weights)
        wide = self._student * math.sqrt(self._variance * float(1 + row @ self._inverse @ row))
        return Forecast(max(1.0, value), max(1.0, value - wide), value + wide)

    @staticmethod
    def _row(tokens: float, parameters: float) -> list[float]:
        # The numbers are relative to those of a typical head, which keeps the fit's numbers small.
        return [1.0, math.log2(tokens / 1e5), math.log2(parameters / 1e6)]
