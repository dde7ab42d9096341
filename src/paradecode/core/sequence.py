"""A sequence as a decoder sees it. The engine provides it; decoders read it and commit tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.logits import Logits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.trace import CanvasStep, TokenLogprob
from paradecode.core.vocabulary import Vocabulary

T = TypeVar("T")

TARGET = "target"
"""Name of the model whose distribution the output must follow."""

DRAFT = "draft"
"""Name of the small model that some methods bring."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a verifier decided: tokens to append, the last of them usually not from the draft.

    Attributes:
        tokens: at least one token id, in order.
        rows: for each token, the row of ``logits`` it was drawn from (for log-probabilities).
        logits: the reply's logits, before any processor.
    """

    tokens: list[int]
    rows: list[int]
    logits: Logits


@dataclass(frozen=True)
class ModelFacts:
    """What a method may know of a model.

    Attributes:
        layers, hidden_size, vocab_size: its sizes.
        vocabulary: how its tokens correspond to the target's; None when they are the same.
        attention: ``causal``, ``full`` or ``block`` (full inside of blocks of ``block_length``
            positions, causal between them).
        mask_token: what a model of masked diffusion reads where nothing is decided; else None.
        shift: the logits of row i are about position i + 1 on a canvas, too.
        eos_tokens: ids that end a text.
        context_length: largest number of positions.
        name: of the model; empty when nobody knows it.
    """

    layers: int
    hidden_size: int
    vocab_size: int
    vocabulary: Vocabulary | None = None
    attention: str = "causal"
    block_length: int = 0
    mask_token: int | None = None
    shift: bool = False
    eos_tokens: tuple[int, ...] = ()
    context_length: int = 1 << 24
    name: str = ""


class Sequence(Protocol):
    """One live request."""

    params: SamplingParams
    sampler: Sampler
    prompt_length: int
    prediction: NDArray[np.int32] | None
    """int32: what the caller expects the output to be, if that was said."""
    constraint: Constraint | None
    """What the output must be; where it stands in it is the sampler's ``matcher``."""

    @property
    def finished(self) -> bool:
        """Whether an end was reached; nothing may be committed after it."""
        ...

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [n]: prompt and output so far; a read-only view, valid until the next commit."""
        ...

    @property
    def pending(self) -> NDArray[np.int32]:
        """int32: committed tokens whose keys and values the target does not hold yet."""
        ...

    def pending_for(self, model: str = TARGET) -> NDArray[np.int32]:
        """The tokens that a model of the method has not seen yet, in that model's own token ids."""
        ...

    def about(self, model: str = TARGET) -> ModelFacts:
        """Sizes of a model; raises DecoderError if there is none of that name."""
        ...

    def room_for(self, model: str) -> int:
        """How many tokens may still follow the committed ones in another model's cache."""
        ...

    @property
    def room(self) -> int:
        """How many more tokens this sequence may commit (``max_tokens`` and context)."""
        ...

    @property
    def neighbours(self) -> int:
        """How many other sequences share the engine's steps at present."""
        ...

    def step_seconds(self, rows: int, model: str = TARGET) -> float | None:
        """Seconds of a step in which this sequence has ``rows`` rows; None when not measured."""
        ...

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """The object that all requests of one tenant share under ``name``; ``make`` builds it.

        For methods that learn from one request for the next (suffix trees, token matrices). Such
        an object lives as long as the engine, and must bound its own size.
        """
        ...

    def commit(self, verdict: Verdict) -> None:
        """Append tokens up to the first that ends the output, and keep their rows of the cache."""
        ...

    def fill(
        self,
        tokens: list[int],
        step: CanvasStep,
        logprobs: list[TokenLogprob],
        end: str | None = None,
    ) -> None:
        """Report a step of a canvas, and append the ``tokens`` that no undecided one precedes.

        Args:
            tokens: may be empty; cut at the first stop, which decides ``finished``.
            logprobs: one entry for each token if ``params.logprobs`` asks for them.
            end: finish reason if the canvas ends behind these tokens.
        """
        ...

    def adopt(self, child: Sequence) -> None:
        """Make a fork's tokens and cache this sequence's own."""
        ...
