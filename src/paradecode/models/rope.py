"""Rotary position embedding, and the ways in which models stretch it to longer contexts."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import attributes, checked, flag, number, one_of, whole
from paradecode.core.errors import InvalidModel

_POSITIVE = number(1e-12, 1e12)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, always in the half-split layout (element i pairs with i + d/2).

    Attributes:
        theta: base of the wavelengths.
        dim: number of leading dimensions of a head that are rotated (partial rotary when <
            head_dim).
        scaling: ``none``, ``linear``, ``llama3``, ``yarn`` or ``longrope``.
        factor, low_freq_factor, high_freq_factor, original_context: parameters of the scaling.
        attention_factor: cosines and sines are multiplied by it (yarn, longrope).
        beta_fast, beta_slow: yarn's correction range, in rotations.
        truncate: whether yarn's correction range is rounded to whole pairs.
        factors: one divisor for each rotated pair, or empty. They replace ``scaling``; GGUF files
            store the llama3 scaling in this form.
        still: how many of the last pairs do not turn, although they are paired over all of ``dim``.
    """

    theta: float = checked(_POSITIVE, 10000.0)
    dim: int = 64
    scaling: str = checked(one_of("none", "linear", "llama3", "yarn", "longrope"), "none")
    factor: float = checked(_POSITIVE, 1.0)
    low_freq_factor: float = checked(_POSITIVE, 1.0)
    high_freq_factor: float = checked(_POSITIVE, 4.0)
    original_context: int = checked(whole(1, 1 << 39), 8192)
    attention_factor: float = checked(_POSITIVE, 1.0)
    beta_fast: float = checked(_POSITIVE, 32.0)
    beta_slow: float = checked(_POSITIVE, 1.0)
    truncate: bool = checked(flag, True)
    factors: tuple[float, ...] = ()
    still: int = checked(whole(0, 512), 0)

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """Return each rotated pair's angle per position, with all scaling: float64 [dim / 2].

        The angle of pair i at position p is ``p * inverse_frequencies()[i]``; cosines and sines are
        then multiplied by ``attention_factor``.
        """
        base = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.still:
            base[len(base) - self.still :] = 0.0
        if self.factors:
            return base / np.asarray(self.factors)
        if self.scaling == "linear":
            return base / self.factor
        if self.scaling == "llama3":
            rotations = self.original_context * base / (2 * np.pi)
            span = self.high_freq_factor - self.low_freq_factor
            keep = np.clip((rotations - self.low_freq_factor) / span, 0, 1)
            return keep * base + (1 - keep) * base / self.factor
        if self.scaling == "yarn":
            low, high = self._pair_of(self.beta_fast), self._pair_of(self.beta_slow)
            if self.truncate:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, self.dim - 1)
            ramp = (np.arange(self.dim // 2) - low) / (high - low or 0.001)
            stretch = np.clip(ramp, 0, 1)
            return (1 - stretch) * base + stretch * base / self.factor
        return base

    def _pair_of(self, rotations: float) -> float:
        """Return the (fractional) index of the pair that rotates this often in the old context."""
        turns = self.original_context / (rotations * 2 * math.pi)
        return self.dim * math.log(turns) / (2 * math.log(self.theta))

    def check_contexts(self, context: int) -> None:
        """Warn if the scaling contradicts the ratio of the new context to the original one."""
        original, ratio = self.original_context, context / self.original_context
        if self.scaling == "yarn" and original != context:
            if not math.isclose(ratio, self.factor, rel_tol=1e-3):
                said = f"rope: factor {self.factor:g} is used, although the contexts {original} and"
                warnings.warn(f"{said} {context} have the ratio {ratio:g}", stacklevel=3)
        elif self.scaling == "llama3" and original >= context:
            said = f"rope: the context before scaling, {original}, is used, although it is not less"
            warnings.warn(f"{said} than the context of the model, {context}", stacklevel=3)

    def check(self) -> None:
        """Raise InvalidModel if a number is out of range (NaN and infinity included)."""
        attributes(self, None, "rope.", InvalidModel)
        if self.still > self.dim // 2:
            fix = f"a head with {self.dim} rotated numbers has {self.dim // 2} pairs"
            raise InvalidModel("rope.still", self.still, fix)
        if self.scaling == "yarn" and self.theta <= 1:
            raise InvalidModel("rope.theta", self.theta, "yarn needs a base above 1")
        if self.scaling == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise InvalidModel(
                "rope.high_freq_factor", self.high_freq_factor, "it must exceed low_freq_factor"
            )
        if self.factors and len(self.factors) != self.dim // 2:
            raise InvalidModel("rope.factors", len(self.factors), f"give {self.dim // 2} factors")
        if not all(1e-12 < factor < 1e12 for factor in self.factors):
            raise InvalidModel("rope.factors", self.factors, "give positive numbers")
