"""What is asked of the engine: a prompt, how to sample, and with which method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.decoder import Decoder
from paradecode.core.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """One output wanted.

    Attributes:
        prompt: int32 [p], token ids, at least one.
        decoder: makes the method's object for this request.
        params: with ``n`` 1.
        priority: smaller goes first; equal ones in order of arrival.
        deadline: seconds from arrival after which the request ends with what it has.
        prediction: int32, what the output will probably be, for methods that can use it.
        constraint: what the output must be.
        salt: tenant; prompts are shared in the prefix cache only under the same salt.
    """

    prompt: NDArray[np.int32]
    decoder: Callable[[], Decoder]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    prediction: NDArray[np.int32] | None = None
    constraint: Constraint | None = None
