"""The interface of a method: what it and the engine say to each other.

A decoder is an object whose ``decode`` is a generator. It reads a :class:`TokenSequence`, yields
requests, receives replies, and commits tokens. It may also yield a list of requests, which run
together if the backend can do that, and gets a list of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal, Protocol, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.head import Head, HeadDraft
from paradecode.core.layers import Layers
from paradecode.core.logits import Logits
from paradecode.core.multi_step import MultiStep
from paradecode.core.network import Item, Network
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.trace import CanvasStep, TokenLogprob
from paradecode.core.tree import EMPTY, TokenTree
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


# Requests, and their replies.


class Attend(Enum):
    """How the new rows of a forward see one another; all see the visible cached slots."""

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True)
class BlockCausal:
    """Rows see every row of their own block of ``size`` positions and of earlier blocks."""

    size: int


class Store(Enum):
    """What happens to the keys and values of a forward's ``tokens`` rows."""

    COMMIT = "commit"
    """Append them. Rows of tokens must be the sequence's own next tokens."""
    NONE = "none"
    """Store nothing; the rows still see the cache and one another."""


@dataclass(frozen=True)
class Overwrite:
    """Store the rows into chosen slots; slot i is position i.

    The old content of a slot is replaced, in the layers that run. A committed row that went through
    some layers can therefore go through others later. Slots after the committed rows may be
    written, and then be named in ``Forward.visible``; a slot that is not named there is not seen.
    While such a slot holds rows, no more tokens can be committed to this cache. A draft takes the
    slots that it needs, and their old content is lost. While a draft is held, only committed rows
    can be replaced.

    Attributes:
        slots: int32 [K], distinct, one for each row; -1 stores nothing.
    """

    slots: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Denoise:
    """The rows of a forward are a canvas of a model that refines random tokens.

    Such a model reads the canvas together with its own guess from the step before.

    Attributes:
        guess: logits [K, V] of these rows from the step before; None in the first step.
    """

    guess: Logits | None = None


@dataclass(frozen=True, eq=False)
class Forward:
    """Run a model over ``tokens`` (K rows) and then over the nodes of ``tree`` (M rows).

    Tree rows follow the last committed token, and each row sees its ancestors. They are stored
    *tentatively*: at the next commit the rows of the committed tokens are kept and all others are
    dropped. A draft model that grows its tree level by level runs a forward for each level, in
    which ``under`` says where the new nodes hang.

    Attributes:
        tokens: int32 [K] token ids; may be empty when there is a tree.
        tree: candidate nodes that follow the sequence's last committed token.
        under: int32 [M] or None; for each tree row whose parent is ``ROOT``, the tentative row that
            it follows (rows of this model, counted from the last commit), or -1 for the last
            committed token. None means -1 everywhere.
        places: int32 [M]; rotary positions of the tree's rows, where these are not those of their
            depths. Such rows are stored nowhere and never kept: each guesses, beside its ancestors.
        attend: visibility among the ``tokens`` rows: CAUSAL, FULL, BlockCausal(n) or bool [K, K].
        store: where the ``tokens`` rows are stored.
        positions: int32 [K] rotary positions of ``tokens``; default: those that follow the cache.
        visible: int32 [V] cached slots that the rows see; default: every committed slot.
        logits: rows (indices into K + M) that go through the LM head. Default: the last of
            ``tokens`` (if any) and then every tree row, so that row 0 of the reply is the root and
            row i + 1 is node i.
        hidden: layers whose outputs are returned (0 is the first layer; -1 the last, before the
            norm). They must run. If half of a layer runs, it is the output of that half.
        layers: the layers, or halves of layers (:class:`paradecode.core.layers.Half`), to run, in
            order; None runs all of them. A tree that runs with ``layers`` is scratch (for
            self-speculation): it follows the last *cached* token, so pending tokens are its first
            nodes, and the next full forward drops it. If such rows went through the first layers,
            and their states behind these were asked for with ``hidden``, then a forward of the
            layers that are left, with ``tokens`` and a tree that are all among these rows, goes on
            from there. It is the same as a full forward. A forward of the next layers alone, with
            such rows in its tree and without ``tokens``, goes on too; its rows remain scratch.
        embeddings: float32 [K, hidden size]; replaces the lookup of ``tokens``.
        given: float32 [G, hidden size]; enters the first of the forward's layers for the last G
            rows of the tree, whose tokens are -1. They guess beside the draft, and are never kept:
            prompt tokens, or rows that enter the target where the others go on.
        resume: float32 [K, hidden size]; hidden states that enter the first of ``layers``.
        attention: int32 [A]; rows (indices into K + M) whose attention weights are returned, of
            every layer whose attention runs; for models with ``ModelFacts.gives_attention``.
        denoise: the rows of ``tokens`` are a canvas, for models with ``ModelFacts.canvas_length``;
            they see one another and all visible slots, and are not stored.
        model: name of the model, ``TARGET`` unless the method brings another.
        on: the sequence (a fork) that the forward concerns; default: the decoder's own.
    """

    tokens: NDArray[np.int32]
    tree: TokenTree = EMPTY
    under: NDArray[np.int32] | None = None
    places: NDArray[np.int32] | None = None
    attend: Attend | BlockCausal | NDArray[np.bool_] = Attend.CAUSAL
    store: Store | Overwrite = Store.COMMIT
    positions: NDArray[np.int32] | None = None
    visible: NDArray[np.int32] | None = None
    logits: NDArray[np.int32] | None = None
    hidden: tuple[int, ...] = ()
    layers: Layers | None = None
    embeddings: NDArray[np.float32] | None = None
    given: NDArray[np.float32] | None = None
    resume: NDArray[np.float32] | None = None
    attention: NDArray[np.int32] | None = None
    denoise: Denoise | None = None
    model: str = TARGET
    on: TokenSequence | None = None

    @property
    def sequential(self) -> bool:
        """Whether its ``tokens`` do nothing but continue the text, as those of a prompt do.

        Such tokens can be spread over several forwards, of which the last one has the tree. Every
        field but those of ``_OF_ANY`` has its default then.
        """
        return all(getattr(self, name) is default for name, default in _SEQUENTIAL)


_OF_ANY = {"tokens", "tree", "under", "places", "given", "hidden", "layers", "model", "on"}
"""Fields of a forward that leave its tokens sequential."""
_SEQUENTIAL = [
    (entry.name, entry.default) for entry in fields(Forward) if entry.name not in _OF_ANY
]


@dataclass(frozen=True, eq=False)
class Overlap:
    """Run a forward, and meanwhile a part of the method that asks another model.

    The reply is a pair: that of the forward, and what ``meanwhile`` returned. Both run at the same
    time if the models have threads of their own, else one after the other.

    Attributes:
        forward: of the target.
        meanwhile: yields forwards of other models, one at a time. Nothing is committed before it
            and the forward are done.
    """

    forward: Forward
    meanwhile: Generator[Forward, Reply, Any]


@dataclass(frozen=True, eq=False)
class Apply:
    """Run a small trained network, or a draft head; requests of several sequences share one run.

    The reply is float32 [n, width of the network's result]; that of a head is a TokenTree.

    Attributes:
        inputs: name -> float32 [n, width] or whole numbers [n], as the network declares them; for a
            head a :class:`HeadDraft`.
    """

    network: Network | Head
    inputs: Item | HeadDraft


@dataclass(frozen=True)
class Fork:
    """Ask for ``count`` child sequences that share everything committed so far.

    The reply is a list of sequences for ``Forward.on``. They live until the decoder ends, or
    releases them (``child.release()``), or calls ``seq.adopt(child)``, with which the sequence
    takes over a child's tokens.

    Attributes:
        of: the sequence to fork, if that is itself a fork; None is the decoder's own.
    """

    count: int
    of: TokenSequence | None = None


Request = Union[Forward, Overlap, Apply, Fork, MultiStep]


@dataclass(frozen=True, eq=False)
class Reply:
    """Answer to a :class:`Forward`.

    Attributes:
        logits: one row for each requested row, in the requested order.
        hidden: layer index -> float32 [K + M, hidden size].
        attention: layer index -> float32 [A, heads, V + K + M]: the share of a row's attention that
            goes to each of the ``visible`` slots, and then to each row in order of position.
    """

    logits: Logits
    hidden: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    attention: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)


# The method itself.

Guarantee = Literal["exact", "distribution", "lossy"]
"""``exact``: plain decoding's tokens; ``distribution``: its distribution; ``lossy``: neither."""

GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "lossy")
"""From the strongest to the weakest."""


def weakest(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of a method whose parts have these guarantees."""
    return max(guarantees, key=GUARANTEES.index)


Steps = Generator["Request | list[Request]", Any, None]
"""Yields a request (or a list, run together) and gets the reply (or the list of replies)."""


class Decoder(Protocol):
    """One method with its settings; the engine builds one for each request."""

    def decode(self, seq: TokenSequence) -> Steps:
        """Decode until ``seq.finished``."""
