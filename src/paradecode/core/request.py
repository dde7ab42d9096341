"""What a decoder asks of the engine, and what it gets back.

A decoder is a generator. It yields one of the requests below (or a list of them, to be run at the
same time where the backend can) and is resumed with the reply (or the list of replies).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Union

import numpy as np
from numpy.typing import NDArray

from paradecode.core.layers import Layers
from paradecode.core.logits import Logits
from paradecode.core.network import Item, Network
from paradecode.core.sequence import DRAFT as DRAFT
from paradecode.core.sequence import TARGET
from paradecode.core.sequence import Sequence as DecodedSequence
from paradecode.core.tree import EMPTY, TokenTree


class Attend(Enum):
    """How the new rows of a forward see one another; all see the visible cached slots."""

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True)
class BlockCausal:
    """Rows see every row of their own block of ``size`` positions and of earlier blocks."""

    size: int


class Store(Enum):
    """What becomes of the keys and values of a forward's ``tokens`` rows."""

    COMMIT = "commit"
    """Append for good. With token input the rows must be the sequence's own next tokens."""
    NONE = "none"
    """Read-only: the rows see the cache and one another, and leave no trace."""


@dataclass(frozen=True)
class Overwrite:
    """Store the rows into slots of their own choice (canvas decoding); slot i is position i.

    What was in a slot is replaced. Slots beyond the committed rows may be written and, once they
    are, be named in ``Forward.visible``.

    Attributes:
        slots: int32 [K], distinct, one for each row; -1 stores nothing.
    """

    slots: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward over ``tokens`` (K rows), then over the nodes of ``tree`` (M rows).

    Tree rows hang under the last committed token, see their ancestors, and are stored tentatively:
    when the sequence next commits tokens, the tentative rows on the committed path are kept and the
    others are dropped. A tree may extend tentative rows of earlier forwards (a draft model that
    grows its tree level by level): its parents then count through all tentative rows so far, which
    is why they are given by ``under``.

    Attributes:
        tokens: int32 [K] token ids; may be empty when there is a tree.
        tree: candidate nodes that follow the sequence's last committed token.
        under: int32 [M] or None; for each tree row whose parent is ``ROOT``, the tentative row (of
            this model, counted from the last commit) under which it hangs, or -1 for the last
            committed token. None means -1 everywhere.
        attend: visibility among the ``tokens`` rows: CAUSAL, FULL, BlockCausal(n) or bool [K, K].
        store: what becomes of the ``tokens`` rows.
        positions: int32 [K] rotary positions of ``tokens``; default: those that follow the cache.
        visible: int32 [V] cached slots that the rows see; default: every committed slot.
        logits: rows (indices into K + M) that go through the LM head. Default: the last of
            ``tokens`` (if any) and then every tree row, so that row 0 of the reply is the root and
            row i + 1 is node i.
        hidden: layers whose outputs come back (0 is the first layer; -1 the last, before the norm).
            They must run. Of a layer that runs by half this is what that half puts out.
        layers: the layers, or halves of layers (:class:`paradecode.core.layers.Half`), to run, in
            order; None runs all of them. Rows of a forward with ``layers`` are scratch: its tree
            hangs under the last *cached* token, so that pending tokens are its first nodes, and
            the next full forward drops it (self-speculation).
        embeddings: float32 [K, hidden size]; replaces the lookup of ``tokens``.
        resume: float32 [K, hidden size]; hidden states that enter the first of ``layers``.
        model: name of the model, ``TARGET`` unless the method brings another.
        on: the sequence (a fork) that the forward concerns; default: the decoder's own.
    """

    tokens: NDArray[np.int32]
    tree: TokenTree = EMPTY
    under: NDArray[np.int32] | None = None
    attend: Attend | BlockCausal | NDArray[np.bool_] = Attend.CAUSAL
    store: Store | Overwrite = Store.COMMIT
    positions: NDArray[np.int32] | None = None
    visible: NDArray[np.int32] | None = None
    logits: NDArray[np.int32] | None = None
    hidden: tuple[int, ...] = ()
    layers: Layers | None = None
    embeddings: NDArray[np.float32] | None = None
    resume: NDArray[np.float32] | None = None
    model: str = TARGET
    on: DecodedSequence | None = None


@dataclass(frozen=True, eq=False)
class Apply:
    """Run a small trained network; requests of several sequences share one run.

    The reply is float32 [n, width of the network's result].

    Attributes:
        inputs: name -> float32 [n, width] or whole numbers [n], as the network declares them.
    """

    network: Network
    inputs: Item


@dataclass(frozen=True)
class Fork:
    """Ask for ``count`` child sequences that share everything committed so far.

    The reply is a list of sequences, to be used as ``Forward.on``. They live until the decoder
    ends, or until it calls ``seq.adopt(child)``, which makes a child's tokens the sequence's own.
    """

    count: int


Request = Union[Forward, Apply, Fork]


@dataclass(frozen=True, eq=False)
class Reply:
    """Answer to a :class:`Forward`.

    Attributes:
        logits: one row for each requested row, in the requested order.
        hidden: layer index -> float32 [K + M, hidden size].
    """

    logits: Logits
    hidden: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
