"""Requests of a method on their way to a backend, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.errors import DecoderError
from paradecode.core.layers import is_layer, work
from paradecode.core.request import TARGET, Apply, Attend, Forward, Overwrite, Reply, Store
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.sequence import LiveSequence


class PendingForward:
    """A :class:`Forward` that was asked for; a long prompt takes several forwards of the backend.

    Args:
        owner: the sequence whose method asked.
        sequence: the one that the rows belong to: the owner, or a fork of it.

    Attributes:
        done: how many of the ``tokens`` rows were run.
        waited: for how many steps there was no room.
        reply: the answer, when it is complete.
        error: why there will be none.
    """

    def __init__(self, forward: Forward, owner: LiveSequence, sequence: LiveSequence) -> None:
        self.forward, self.owner, self.sequence = _checked(forward), owner, sequence
        self.cache = sequence.cache(forward.model)
        self.done = 0
        self.waited = 0
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._hidden: dict[int, list[NDArray[np.float32]]] = {}

    @property
    def rows(self) -> int:
        return len(self.forward.tokens) - self.done + len(self.forward.tree.tokens)

    @property
    def drafts(self) -> bool:
        """Whether this serves a draft only: another model, or some layers that store nothing."""
        f = self.forward
        partial = f.layers is not None and not (len(f.tokens) and f.store is not Store.NONE)
        return f.model != TARGET or partial

    @property
    def divisible(self) -> bool:
        """Whether the rows may be spread over several forwards."""
        f = self.forward
        return (
            len(f.tokens) - self.done > 1
            and f.store is Store.COMMIT
            and f.attend is Attend.CAUSAL
            and f.logits is None
            and f.positions is None
            and f.visible is None
            and f.embeddings is None
            and f.resume is None
        )

    def part(self, rows: int) -> Forward:
        """The forward of the next ``rows`` rows: all that is left, or tokens without the tree."""
        if rows >= self.rows and self.done == 0:
            return self.forward
        left = len(self.forward.tokens) - self.done
        if rows >= self.rows:
            return replace(self.forward, tokens=self.forward.tokens[self.done :])
        count = min(rows, left - 1) if rows >= left else rows
        return replace(
            self.forward,
            tokens=self.forward.tokens[self.done : self.done + count],
            tree=EMPTY,
            under=None,
            logits=np.empty(0, np.int32),
        )

    def plan(self, part: Forward) -> Span:
        return self.cache.plan(part, self.sequence.tokens_for(part.model))

    def receive(self, part: Forward, result: SpanResult) -> None:
        """Book a forward that ran ``part``."""
        self.cache.record(part, self.sequence.tokens_for(part.model))
        self.done += len(part.tokens)
        for layer, states in result.hidden.items():
            self._hidden.setdefault(layer, []).append(states)
        if self.rows == len(self.forward.tree.tokens) == len(part.tree.tokens):
            if not self.drafts:
                self._book()
            layers = self.cache.backend.config.layers
            hidden = {
                layer: np.concatenate(self._hidden[layer % layers]) for layer in self.forward.hidden
            }
            self.reply = Reply(result.logits, hidden)

    def _book(self) -> None:
        f, rows = self.forward, len(self.forward.tokens)
        if f.layers is not None and isinstance(f.store, Overwrite):
            # Some layers of a canvas once more: no forward of its own, but a part of its rows.
            self.sequence.rows += round(rows * work(f.layers) / self.cache.backend.config.layers)
        else:
            self.sequence.scored(f.tree, rows)


class PendingApply:
    """An :class:`Apply` that was asked for.

    Attributes:
        reply: the module's output, when it was run.
        error: why there will be none.
    """

    def __init__(self, asked: Apply) -> None:
        self.module, self.inputs = asked.module, np.asarray(asked.inputs)
        if self.inputs.ndim == 0:
            raise DecoderError("the inputs of a module need a first axis")
        self.reply: NDArray[Any] | None = None
        self.error: Exception | None = None


Pending = Union[PendingForward, PendingApply]


def _checked(forward: Forward) -> Forward:
    """The forward with its parts in the types that the engine relies on."""
    tokens = np.asarray(forward.tokens)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise DecoderError(f"tokens must be a vector of token ids, not {forward.tokens!r}")
    if not isinstance(forward.tree, TokenTree):
        raise DecoderError(f"tree must be a TokenTree, not {type(forward.tree).__name__}")
    layers = None if forward.layers is None else tuple(forward.layers)
    if layers is not None and not all(map(is_layer, layers)):
        raise DecoderError(
            "layers must be numbers of layers, or Half(number, 'attention' or 'mlp'), not "
            f"{layers!r:.80}"
        )
    if tokens is forward.tokens and layers is forward.layers and isinstance(forward.hidden, tuple):
        return forward
    return replace(forward, tokens=tokens, layers=layers, hidden=tuple(forward.hidden))
