"""The sequence of a request as its decoder sees it. Decoders read it and commit tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.head import Head
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
    """The decision of a verifier: tokens to append; the last one is usually not from the draft.

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
    """What a method may know about a model.

    Attributes:
        layers, heads, hidden_size, vocab_size: its sizes; ``heads`` counts a layer's query heads.
        outputs: tokens that its LM head tells apart; 0: all of them.
        vocabulary: maps its tokens to the target's; None if they are the same, and its head says
            all of them.
        attention: ``causal``, ``full`` or ``block`` (full inside of blocks of ``block_length``
            positions, causal between them).
        mask_token: the mask token of a masked diffusion model, or None.
        shift: on a canvas, too, the logits of row i predict position i + 1.
        canvas_length: positions that a model without a mask token denoises together, or 0.
        eos_tokens: ids that end a text.
        context_length: largest number of positions.
        name: the model's name; may be empty.
        gives_attention: its forwards can return attention weights.
    """

    layers: int
    hidden_size: int
    vocab_size: int
    outputs: int = 0
    vocabulary: Vocabulary | None = None
    attention: str = "causal"
    block_length: int = 0
    mask_token: int | None = None
    shift: bool = False
    canvas_length: int = 0
    eos_tokens: tuple[int, ...] = ()
    context_length: int = 1 << 24
    name: str = ""
    gives_attention: bool = False
    heads: int = 1

    @property
    def writes(self) -> bool:
        """Whether the model writes from left to right."""
        return self.attention == "causal" and not self.canvas_length

    @property
    def head_layers(self) -> float:
        """Weights of the LM head as a number of layers, each of which has about 12 hidden_size^2
        weights."""
        return (self.outputs or self.vocab_size) / (12 * self.hidden_size)


class TokenSequence(Protocol):
    """One live request, seen from its decoder."""

    params: SamplingParams
    sampler: Sampler
    prompt_length: int
    prediction: NDArray[np.int32] | None
    """int32: the output that the caller expects, or None."""
    constraint: Constraint | None
    """The constraint of the output, or None; the sampler's ``matcher`` has its state."""

    @property
    def finished(self) -> bool:
        """Whether the output has ended; then nothing may be committed."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [n]: prompt and output so far; a read-only view, valid until the next commit."""

    @property
    def pending(self) -> NDArray[np.int32]:
        """int32: committed tokens whose keys and values are not in the target's cache yet."""

    def pending_for(self, model: str = TARGET) -> NDArray[np.int32]:
        """The committed tokens that are not in a model's cache yet, in that model's token ids."""

    def about(self, model: str = TARGET) -> ModelFacts:
        """Facts about a model; raises DecoderError if there is no model of that name."""

    def head(self, path: str, vocabulary: int = 0, dtype: str = "q8") -> Head:
        """The draft head in a folder, made for the target; read once.

        Args:
            vocabulary: how many of its tokens it may guess; 0 for all.
            dtype: format of its matrices, ``q8`` or ``q4``, where the backend rounds them.

        Raises:
            InvalidModel: if there is none, or it does not fit the target.
        """

    def embed(self, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        """float32 [n, hidden size]: the target's embeddings, for ``Forward.embeddings``."""

    def found(self, model: str = TARGET) -> int:
        """Number of a canvas's leading tokens whose final keys and values earlier requests have
        left."""

    def room_for(self, model: str) -> int:
        """Number of tokens that fit into another model's cache after the committed ones."""

    @property
    def room(self) -> int:
        """Number of tokens that this sequence may still commit (``max_tokens`` and context)."""

    @property
    def scratch(self) -> int:
        """Number of tentative rows that fit behind the committed tokens."""

    @property
    def neighbours(self) -> int:
        """Number of other sequences that share the engine's steps now."""

    def step_seconds(self, rows: int, model: str = TARGET, keys: int | None = None) -> float | None:
        """Seconds of a step in which this sequence has ``rows`` rows; None if not measured.

        Args:
            keys: how many cached keys they see; None for all.
        """

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """The object that all requests of a tenant share under ``name``; ``make`` builds it.

        Methods use it to learn from one request for the next (suffix trees, token matrices). Such
        an object lives as long as the engine and must bound its own size.
        """

    def commit(self, verdict: Verdict) -> None:
        """Append tokens up to the first that ends the output; their rows stay in the cache."""

    def fill(
        self,
        tokens: list[int],
        step: CanvasStep,
        logprobs: list[TokenLogprob],
        end: str | None = None,
    ) -> None:
        """Report a step of a canvas, and append ``tokens``, in front of which everything is
        decided."""

    def adopt(self, child: TokenSequence) -> None:
        """Take over the tokens and the cache of a fork."""

    def release(self) -> None:
        """Give the pages of a fork back; its tokens stay, but nothing more can be run on it."""


if not TYPE_CHECKING:  # Type checkers learn the new name alone.

    def __getattr__(name: str) -> Any:
        """Return ``TokenSequence`` under its old name, which is removed in version 0.4."""
        if name != "Sequence":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        text = "paradecode.core.sequence.Sequence is TokenSequence now; the old name goes in 0.4"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return TokenSequence
