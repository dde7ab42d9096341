"""The interface between a decoding method and the engine.

A decoder is an object whose ``decode`` is a generator. It reads a :class:`TokenSequence`, yields
requests, receives replies, and commits tokens. It may also yield a list of requests, which run
together if the backend can do that; the reply is then a list of replies.
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
"""Name of the small draft model that some methods use."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decision of a verifier: the tokens to append. The last one is usually not from the draft.

    Attributes:
        tokens: at least one token id, in order.
        rows: for each token, the row of ``logits`` from which it was drawn (for log-probabilities).
        logits: the logits of the reply, before any penalty, ban or bias.
    """

    tokens: list[int]
    rows: list[int]
    logits: Logits


@dataclass(frozen=True)
class ModelFacts:
    """Metadata of a model that a method may read.

    Attributes:
        layers, heads, hidden_size, vocab_size: sizes of the model; ``heads`` is the number of query
            heads in a layer.
        outputs: number of rows of its LM head; 0 means one for every token.
        vocabulary: maps this model's tokens to the target's. None if the tokens are the same and
            the LM head has a row for each of them.
        attention: ``causal``, ``full`` or ``block`` (full inside of blocks of ``block_length``
            positions, causal between blocks).
        mask_token: the mask token of a masked diffusion model, or None.
        shift: True if the logits at position i predict position i + 1 on a canvas, too.
        canvas_length: number of positions that a model without a mask token denoises together, or
            0.
        eos_tokens: token ids that end a text.
        context_length: largest number of positions.
        name: the model's name; may be empty.
        gives_attention: True if its forward passes can return attention weights.
        window: the narrowest attention window of its layers, or 0. Keys before the window are
            freed.
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
    window: int = 0

    @property
    def writes(self) -> bool:
        """True if the model generates text from left to right."""
        return self.attention == "causal" and not self.canvas_length

    @property
    def head_layers(self) -> float:
        """The size of the LM head, in transformer layers of about 12 hidden_size^2 weights."""
        return (self.outputs or self.vocab_size) / (12 * self.hidden_size)


class TokenSequence(Protocol):
    """A decoder's view of its request: tokens, models, caches, commits."""

    params: SamplingParams
    sampler: Sampler
    prompt_length: int
    prediction: NDArray[np.int32] | None
    """int32 [n]: the output that the caller expects, or None."""
    constraint: Constraint | None
    """The constraint of the output, or None. Its state is ``sampler.matcher``."""

    @property
    def finished(self) -> bool:
        """True if the output has ended; then nothing more may be committed."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Int32 [n]: the tokens of prompt and output so far; read-only, valid until a commit."""

    @property
    def pending(self) -> NDArray[np.int32]:
        """Int32 [n]: committed tokens whose keys and values are not in the target's cache yet."""

    def pending_for(self, model: str = TARGET) -> NDArray[np.int32]:
        """Return the committed tokens that a model's cache lacks, as token ids of that model."""

    def about(self, model: str = TARGET) -> ModelFacts:
        """Return the metadata of a model; raise DecoderError if no model has that name."""

    def head(self, path: str, vocabulary: int = 0, dtype: str = "q8", model: str = TARGET) -> Head:
        """Load the draft head in the folder ``path``; a folder is read only once.

        Args:
            vocabulary: number of tokens that the head can propose; 0 means all.
            dtype: format of its matrices, ``q8`` or ``q4``, if the backend quantizes them.
            model: the model that the head is for. A head of another model than the target must have
                all of its tensors.

        Raises:
            InvalidModel: if the folder has no head, or the head does not fit the model.
        """

    def embed(self, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the target's embeddings, float32 [n, hidden size], for ``Forward.embeddings``."""

    def found(self, model: str = TARGET) -> int:
        """Return the number of leading canvas tokens whose final keys and values are cached.

        These keys and values come from earlier requests.
        """

    def room_for(self, model: str) -> int:
        """Return the number of tokens that still fit into another model's cache."""

    @property
    def room(self) -> int:
        """The number of tokens that may still be committed (``max_tokens`` and context length)."""

    @property
    def scratch(self) -> int:
        """The number of tentative rows that fit into the K/V cache after the committed tokens."""

    @property
    def neighbours(self) -> int:
        """The number of other sequences that currently run in the engine's steps."""

    def step_seconds(self, rows: int, model: str = TARGET, keys: int | None = None) -> float | None:
        """Return the estimated seconds of a step in which this sequence has ``rows`` rows.

        The result is None if nothing was measured.

        Args:
            keys: number of cached keys that the rows attend to; None means all.
        """

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the object that all requests of a tenant share as ``name``; ``make`` creates it.

        Methods use it to learn across requests (suffix trees, token matrices). Such an object lives
        as long as the engine and must bound its own size.
        """

    def commit(self, verdict: Verdict) -> None:
        """Append tokens up to the first that ends the output. Their rows stay in the K/V cache."""

    def fill(
        self,
        tokens: list[int],
        step: CanvasStep,
        logprobs: list[TokenLogprob],
        end: str | None = None,
    ) -> None:
        """Record a canvas step, and append ``tokens`` before the first undecided position."""

    def adopt(self, child: TokenSequence) -> None:
        """Take over the tokens and the cache of the fork ``child``, in place of the own ones."""

    def release(self) -> None:
        """Give back the cache pages of a fork. Its tokens stay, but it can run nothing more."""


# Requests, and the replies to them.


class Attend(Enum):
    """The new rows that each new row of a forward pass attends to.

    Every row also attends to the visible cached slots.
    """

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True)
class BlockCausal:
    """Each row attends to the rows of its own block of ``size`` positions and of earlier blocks."""

    size: int


class Store(Enum):
    """The place where a forward pass stores the keys and values of its ``tokens``."""

    COMMIT = "commit"
    """Append the rows to the cache. Their tokens must be the sequence's own next tokens."""
    NONE = "none"
    """Store nothing; the rows still attend to the cache and to one another."""


@dataclass(frozen=True)
class Overwrite:
    """Store the rows into chosen cache slots; slot i belongs to position i.

    The old content of a slot is replaced in the layers that run. A committed row that ran through
    some layers can therefore run through other layers later.

    Slots after the committed rows may be written too. A later forward pass attends to such a slot
    only if ``Forward.visible`` names it. While such a slot has a row, no more tokens can be
    committed to this cache. A draft takes the slots that it needs, and their old content is lost.
    While the cache has a draft, only committed rows can be replaced.

    Attributes:
        slots: int32 [K], distinct, one for each row; a row with slot -1 is not stored.
    """

    slots: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Denoise:
    """Declares the rows of a forward pass to be a canvas of a model that refines random tokens.

    Such a model reads the canvas together with its own guess from the previous step.

    Attributes:
        guess: logits [K, V] that the previous step returned for these rows; None in the first step.
    """

    guess: Logits | None = None


@dataclass(frozen=True, eq=False)
class Forward:
    """Run a model over ``tokens`` (K rows) and then over the nodes of ``tree`` (M rows).

    A row is one position: its token goes in, and keys, values and logits come out. Tree rows follow
    the last committed token, and each row attends to its ancestors. Tree rows are stored
    *tentatively*: the next commit keeps the rows of the committed tokens and drops all others. A
    draft model that grows its tree level by level runs one forward pass for each level; ``under``
    says to which earlier rows the new nodes are attached.

    Attributes:
        tokens: int32 [K] token ids; may be empty when there is a tree.
        tree: candidate nodes that follow the sequence's last committed token.
        under: int32 [M] or None; the tentative row that each root of ``tree`` follows, or -1 for
            the last committed token. Tentative rows of this model count from the last commit. None
            means -1 everywhere.
        places: int32 [M]; rotary positions of the tree's rows, if they do not follow from the
            depths. Such rows are never stored or committed; they only return guesses.
        attend: the ``tokens`` rows that each of them attends to: CAUSAL, FULL, BlockCausal(n) or
            bool [K, K].
        store: where the ``tokens`` rows are stored.
        positions: int32 [K] rotary positions of ``tokens``; by default the positions after the
            cached rows.
        visible: int32 [V] cached slots that the rows attend to; by default every committed slot.
        logits: rows (indices into K + M) whose logits are returned. By default the last of
            ``tokens`` (if any) and then every tree row, so that row 0 of the reply is the root and
            row i + 1 is node i.
        hidden: layers whose outputs are returned (0 is the first layer; -1 is the last, before the
            final norm). These layers must run. If only half of a layer runs, its output is
            returned.
        layers: the layers, or halves of layers (:class:`paradecode.core.layers.Half`), to run, in
            order; None runs all of them. A tree that runs with ``layers`` is scratch (for
            self-speculation). It follows the last *cached* token, so its first nodes are the
            pending tokens. The next full forward drops it. Scratch rows can continue if they ran
            through the first layers and ``hidden`` requested their states after these layers. A
            forward of all remaining layers, whose ``tokens`` and tree are among these rows, then
            gives the same result as a full forward. A forward of only the next layers, with such
            rows in its tree and without ``tokens``, continues them as well, and its rows stay
            scratch.
        embeddings: float32 [K, hidden size]; used in place of the embeddings of ``tokens``.
        given: float32 [G, hidden size]; input of the first running layer for the last G rows of the
            tree, whose tokens are -1. These rows only return guesses and are never committed:
            trained prompt tokens, or rows that enter the target at a later layer.
        resume: float32 [K, hidden size]; hidden states that enter the first of ``layers``.
        attention: int32 [A]; rows (indices into K + M) whose attention weights are returned, for
            every layer whose attention runs. The model must have ``ModelFacts.gives_attention``.
        denoise: declares the rows of ``tokens`` a canvas, for models with
            ``ModelFacts.canvas_length``. These rows attend to one another and to all visible slots,
            and are not stored.
        model: name of the model, ``TARGET`` unless the method uses another.
        on: the sequence (a fork) on which the forward runs; by default the decoder's own.
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
        """True if ``tokens`` only continue the text, like the tokens of a prompt.

        Such tokens can be split over several forward passes, and the last forward has the tree. All
        fields except the ones in ``_OF_ANY`` then have their defaults.
        """
        return all(getattr(self, name) is default for name, default in _SEQUENTIAL)


_OF_ANY = {"tokens", "tree", "under", "places", "given", "hidden", "layers", "model", "on"}
"""Fields that may differ from their defaults in a sequential forward pass."""
_SEQUENTIAL = [
    (entry.name, entry.default) for entry in fields(Forward) if entry.name not in _OF_ANY
]


@dataclass(frozen=True, eq=False)
class Overlap:
    """Run a forward pass of the target, and meanwhile a generator that runs another model.

    The reply is a pair: the forward's reply, and the return value of ``meanwhile``. They run at the
    same time if the models have threads of their own, and otherwise one after the other.

    Attributes:
        forward: a forward of the target.
        meanwhile: yields forwards of other models, one at a time. Nothing is committed until both
            the generator and ``forward`` have ended.
    """

    forward: Forward
    meanwhile: Generator[Forward, Reply, Any]


@dataclass(frozen=True, eq=False)
class Apply:
    """Run a small trained network or a draft head; requests of several sequences share one run.

    The reply of a network is float32 [n, width of its result]; the reply of a head is a TokenTree.

    Attributes:
        inputs: for a network, name -> float32 [n, width] or whole numbers [n], as the network
            declares them; for a head, a :class:`HeadDraft`.
    """

    network: Network | Head
    inputs: Item | HeadDraft


@dataclass(frozen=True)
class Fork:
    """Create ``count`` child sequences that share everything committed so far.

    The reply is a list of sequences for ``Forward.on``. A child lives until the decoder ends, until
    ``child.release()``, or until ``seq.adopt(child)`` moves its tokens into the sequence.

    Attributes:
        of: the sequence to fork, if that is itself a fork; None means the decoder's own.
    """

    count: int
    of: TokenSequence | None = None


Request = Union[Forward, Overlap, Apply, Fork, MultiStep]


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply to a :class:`Forward`.

    Attributes:
        logits: one row for each requested row, in the requested order.
        hidden: layer index -> float32 [K + M, hidden size].
        attention: layer index -> float32 [A, heads, V + K + M]: the attention weights of each
            requested row, first over the ``visible`` slots, and then over the forward pass's rows
            in order of position.
    """

    logits: Logits
    hidden: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    attention: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)


# The method itself.

Guarantee = Literal["exact", "distribution", "lossy"]
"""The promise of a method about its output.

``exact`` gives the tokens of plain decoding, ``distribution`` only their distribution, and
``lossy`` neither.
"""

GUARANTEES: tuple[Guarantee, ...] = ("exact", "distribution", "lossy")
"""All guarantees, from the strongest to the weakest."""


def weakest(*guarantees: Guarantee) -> Guarantee:
    """Return the guarantee of a method whose parts have the given guarantees."""
    return max(guarantees, key=GUARANTEES.index)


Steps = Generator["Request | list[Request]", Any, None]
"""The generator of a decoder: it yields a request and receives the reply.

It may also yield a list of requests, which run together; then it receives a list of replies.
"""


class Decoder(Protocol):
    """A decoding method with its settings; the engine builds one object for each request."""

    def decode(self, seq: TokenSequence) -> Steps:
        """Decode until ``seq.finished``, as a generator of requests."""
