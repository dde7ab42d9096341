"""Requests of a method on their way to a backend, and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Backend, Span, SpanResult, gives_attention
from paradecode.core.checks import indices, is_whole
from paradecode.core.errors import BackendLost, DecoderError, InvalidInput
from paradecode.core.layers import Layers, halves, is_layer, work
from paradecode.core.network import Array
from paradecode.core.request import (
    TARGET,
    Apply,
    Attend,
    Forward,
    Overwrite,
    Reply,
    Store,
)
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.engine.kv import KVCache, given_rows
from paradecode.engine.sequence import LiveSequence
from paradecode.engine.visibility import mask_of, seen_slots

Results = tuple[Sequence["SpanResult | Exception"], float]
"""Of a packed forward, with its seconds."""
Run = Callable[[], Results]


class PendingForward:
    """A :class:`Forward` that was asked for; a long prompt takes several forwards of the backend.

    Args:
        owner: the sequence whose method asked.
        sequence: the one that the rows belong to: the owner, or a fork of it.

    Attributes:
        done: how many of the ``tokens`` rows were run.
        waited: for how many steps there was no room.
        joined: whether its rows go on behind layers that drafted.
        reply, error: the answer, when it is complete, or why there will be none.
    """

    def __init__(self, forward: Forward, owner: LiveSequence, sequence: LiveSequence) -> None:
        self.forward, self.owner, self.sequence = _checked(forward), owner, sequence
        self.cache = sequence.cache(forward.model)
        self.done, self.waited, self.joined = 0, 0, False
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._hidden: dict[int, list[NDArray[np.float32]]] = {}
        self._tentative = EMPTY

    @property
    def rows(self) -> int:
        return len(self.forward.tokens) - self.done + len(self.forward.tree.tokens)

    @property
    def drafts(self) -> bool:
        """Whether this serves a draft only: another model, or some layers that store nothing.

        Layers that are asked for their attention weights only look, which is the target's work.
        """
        f = self.forward  # Without layers it is the target's LM head.
        stores = len(f.tokens) > 0 and f.store is not Store.NONE
        some = bool(f.layers) and f.attention is None and not stores
        return f.model != TARGET or some

    @property
    def divisible(self) -> bool:
        """Whether the rows may be spread over several forwards."""
        f = self.forward
        return len(f.tokens) - self.done > 1 and f.sequential and not self.cache.joins(f)

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
            places=None,
            given=None,
            logits=np.empty(0, np.int32),
        )

    def once(self, part: Forward) -> int:
        """Rows of ``part`` that no later step of this kind has: of a prompt, if this is its end."""
        ends = self.done + len(part.tokens) == len(self.forward.tokens)
        return max(0, len(part.tokens) - 1) if ends else 0

    def plan(self, part: Forward) -> Span:
        """What the backend is to run for ``part``; raises what :func:`span_of` raises."""
        self.joined = self.cache.joins(part)
        span, self._tentative = span_of(part, self.cache, self.sequence.tokens_for(part.model))
        return span

    def receive(self, part: Forward, result: SpanResult) -> None:
        """Book a forward that ran ``part``."""
        history = self.sequence.tokens_for(part.model)
        self.cache.record(part, self._tentative, history, result.hidden)
        self.done += len(part.tokens)
        for layer, states in result.hidden.items():
            self._hidden.setdefault(layer, []).append(states)
        if self.rows == len(self.forward.tree.tokens) == len(part.tree.tokens):
            if not self.drafts:
                self._book()
            layers = self.cache.backend.config.layers
            hidden = {
                layer: np.concatenate(self._hidden[layer % layers], dtype=np.float32)
                for layer in self.forward.hidden
            }
            self.reply = Reply(result.logits, hidden, result.attention)

    def _book(self) -> None:
        f, rows = self.forward, len(self.forward.tokens)
        count = len(f.tree) if f.places is not None else given_rows(f)
        # Of rows that go on, the layers before were a draft's, and are not in the books.
        whole = f.layers is None or self.joined
        share = 1.0 if whole else work(f.layers or ()) / self.cache.backend.config.layers
        if whole or f.store is Store.COMMIT:
            drafted = f.tree.first(len(f.tree) - count) if count else f.tree
            self.sequence.scored(drafted, rows + count, share)
        else:  # No forward of its own: further layers of rows that were counted, a look at some
            # layer's attention, or the head alone.
            self.sequence.rows += rows * share
        if self.owner is not self.sequence:  # What forks take is the request's.
            self.owner.rows += (rows + len(f.tree)) * share


def by_model_and_layers(asked: Sequence[PendingForward]) -> list[list[PendingForward]]:
    """What can share a forward: same model, same layers, one that writes a cache."""
    groups: dict[tuple[str, Layers | None, int], list[PendingForward]] = {}
    seen: dict[int, tuple[int, bool]] = {}
    for pending in asked:
        forward = pending.forward
        writes = forward.store is not Store.NONE or len(forward.tree.tokens) > 0
        turn, alone = seen.get(id(pending.cache), (-1, True))
        turn += alone or writes
        seen[id(pending.cache)] = turn, writes
        groups.setdefault((forward.model, forward.layers, turn), []).append(pending)
    return list(groups.values())


def rows_by_owner(asked: Sequence[PendingForward]) -> Counter[str]:
    rows = Counter[str]()
    for forward in asked:
        rows[forward.owner.owner] += forward.rows
    return rows


def run_together(
    batch: Sequence[tuple[PendingForward, int]],
    ran: Counter[KVCache],
    around: Callable[[Run], Results] | None = None,
) -> int:
    """Run so many rows of each in one packed forward, and book the replies.

    Args:
        ran: the rows that the target ran of each cache in this step; those of the batch are added,
            of a prompt that is read now but one, as the next step has none of them.
        around: calls what runs the forward, beside something else.

    Returns:
        1, or 0 if no part could be run.

    Raises:
        BackendLost: no request can go on; whoever owns the engine must know.
    """
    planned: list[tuple[PendingForward, Forward, Span]] = []
    for pending, rows in batch:
        try:
            part = pending.part(rows)
            planned.append((pending, part, pending.plan(part)))
        except Exception as error:
            pending.error = error
    if not planned:
        return 0
    first = planned[0][0]
    backend, drafts = first.cache.backend, first.drafts
    run = partial(_timed, backend, [span for _, _, span in planned])
    results, seconds = run() if around is None else around(run)
    if not drafts:
        for pending, part, span in planned:
            # An LM head alone is no forward, unless nothing else was left of one.
            if pending.forward.layers != () or pending.joined:
                ran[pending.cache] += len(span.positions) - pending.once(part)
    for (pending, part, _), result in zip(planned, results, strict=True):
        if isinstance(result, Exception):
            pending.error = result
            continue
        timer = pending.owner.timer
        if pending.drafts:
            timer.other += seconds
        else:
            timer.target += seconds
        try:
            pending.receive(part, result)
        except Exception as error:
            pending.error = error
    return 1


def _timed(backend: Backend, spans: Sequence[Span]) -> Results:
    """What the forward gives for each, and its seconds."""
    started = time.perf_counter()
    try:
        results: Sequence[SpanResult | Exception] = backend.forward(spans)
    except BackendLost:
        raise
    except Exception:
        # One bad span must not cost its neighbours their step: find out which it was.
        results = [_alone(backend, span) for span in spans]
    return results, time.perf_counter() - started


def _alone(backend: Backend, span: Span) -> SpanResult | Exception:
    try:
        return backend.forward([span])[0]
    except Exception as error:
        return error


class PendingApply:
    """An :class:`Apply` that was asked for.

    Attributes:
        owner: the sequence whose method asked; the time counts as its other models'.
        reply: the network's result, when it was run.
        error: why there will be none.
    """

    def __init__(self, asked: Apply, owner: LiveSequence) -> None:
        network: Any = asked.network
        network.check(asked.inputs)
        self.network, self.inputs, self.owner = asked.network, asked.inputs, owner
        self.reply: Array | TokenTree | None = None
        self.error: Exception | None = None


Pending = Union[PendingForward, PendingApply]


def span_of(forward: Forward, cache: KVCache, history: NDArray[np.int32]) -> tuple[Span, TokenTree]:
    """The rows of ``forward`` as a backend runs them, and the tentative rows behind it.

    Pages for what is stored are taken; apart from that the cache changes only when the forward has
    succeeded and is recorded.

    Args:
        history: int32 [n], the sequence's committed tokens.

    Raises:
        DecoderError: if the forward contradicts the sequence or the model.
        CapacityError: if no page is left.
    """
    tokens, tree = np.asarray(forward.tokens, np.int32), forward.tree
    count, drafted = len(tokens), len(tree.tokens)
    if count + drafted == 0:
        raise DecoderError("a forward needs at least one row")
    partial, layers = forward.layers is not None, cache.backend.config.layers
    if not all(0 <= halves(one)[0] < layers for one in forward.layers or ()):
        raise DecoderError(f"layers {forward.layers!r:.80}: the model has layers 0 to {layers - 1}")
    if not partial and cache.ran is not None:
        cache.drop()  # They were partial rows; now all layers run.
    joins = cache.joins(forward)
    _check_tokens(forward, tokens, cache, history, joins)
    given, resume = forward.given, forward.resume
    if joins:
        resume, given = cache.join(forward), None
        if forward.given is not None:
            resume = np.concatenate([resume, forward.given])
    tentative = EMPTY if joins else cache.tentative
    held = len(tentative)
    start = cache.length + held
    if forward.positions is None:
        positions = np.arange(cache.length, cache.length + count, dtype=np.int32)
    else:
        positions = forward.positions
    slots = _slots(forward.store, cache, start, count)
    tail = tail_positions = _NONE
    if drafted:
        tentative = _extended(forward, tentative)
        first = start + (count if forward.store is Store.COMMIT else 0)
        # Rows of committed tokens have slots of their own.
        beyond = first + drafted - len(history)
        if beyond > cache.scratch and forward.places is None:
            raise DecoderError(
                f"{beyond} draft tokens, but draft_tokens sets aside {cache.scratch}; draft less "
                "or raise it"
            )
        root = cache.length + (count if forward.store is Store.COMMIT else 0) - 1
        if ((joins and count) or not partial) and root != len(history) - 1:
            raise DecoderError("a draft needs every committed token in the cache before it")
        places, behind = forward.places, np.arange(first, first + drafted, dtype=np.int32)
        if places is None:
            places = root + tentative.depths[held:]
        else:
            behind = np.full(drafted, -1, np.int32)
        positions = np.concatenate([positions, places])
        slots = np.concatenate([slots, behind])
        if held:
            tail = np.arange(cache.length, start, dtype=np.int32)
            tail_positions = root + tentative.depths[:held]
    if len(positions) and int(positions.max()) >= cache.backend.config.context_length:
        raise DecoderError(
            f"position {int(positions.max())} is past the model's context of "
            f"{cache.backend.config.context_length}"
        )
    if len(positions) != count + drafted or len(slots) != count + drafted:
        raise DecoderError("positions and slots must have one entry for each token")
    if forward.attention is not None and not gives_attention(cache.backend):
        raise DecoderError(f"{cache.backend.name} gives no attention weights")
    cache.own(slots)
    named = forward.visible is not None or isinstance(forward.store, Overwrite)
    plain = not drafted or (tree.is_chain and not held)  # What the span's default says.
    causal = forward.attend is Attend.CAUSAL and plain
    wanted = forward.logits
    if wanted is None:  # The root, then the nodes.
        wanted = np.arange(max(count - 1, 0), count + drafted, dtype=np.int32)
    if not all(is_whole(one) and -layers <= one < layers for one in forward.hidden):
        raise DecoderError(f"hidden layers {forward.hidden}: the model has {layers}")
    span = Span(
        pages=np.array(cache.pages, np.int32),
        tokens=np.concatenate([tokens, tree.tokens]) if drafted else tokens,
        positions=positions,
        slots=slots,
        context=cache.length,
        visible=seen_slots(forward, cache) if named else None,
        tail=tail,
        tail_positions=tail_positions,
        mask=None if causal else mask_of(forward, positions[:count], held, tentative),
        logits=wanted,
        hidden=tuple(layer % layers for layer in forward.hidden),
        layers=forward.layers,
        embeddings=forward.embeddings if given is None else given,
        resume=resume,
        attention=forward.attention,
        denoise=forward.denoise,
    )
    return span, tentative


def _check_tokens(
    forward: Forward,
    tokens: NDArray[np.int32],
    cache: KVCache,
    history: NDArray[np.int32],
    joins: bool,
) -> None:
    given = forward.embeddings is not None or forward.resume is not None
    if forward.given is not None:
        tree, width = forward.tree.tokens, cache.backend.config.hidden_size
        rows, fits = given_rows(forward), np.shape(forward.given)[1:] == (width,)
        if given or rows > len(tree) or not fits or (tree[len(tree) - rows :] >= 0).any():
            raise DecoderError(
                f"given {np.shape(forward.given)} must be [G, {width}] for the last G rows of the "
                "tree, whose tokens are -1, without embeddings or resume"
            )
    own = forward.store is Store.COMMIT and not given
    vocabulary = cache.backend.config.vocab_size
    # The sequence's own tokens were checked when they became its own.
    drafted = forward.tree.tokens[: len(forward.tree) - given_rows(forward)]
    for ids in (_NONE if own else tokens, drafted):
        if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
            raise DecoderError(f"token ids must be from 0 to {vocabulary - 1}")
    if forward.visible is None and not cache.complete(forward.layers):
        raise DecoderError(
            f"committed rows lack keys and values of layers {forward.layers or 'that run'}: name "
            "the slots that have them in 'visible'"
        )
    if forward.store is Store.COMMIT and len(tokens):
        if len(cache.tentative.tokens) and not joins:
            raise DecoderError("tokens cannot be committed behind tentative rows")
        if cache.filled is not None and cache.filled.end > cache.length:
            raise DecoderError("behind rows that Overwrite stored, no tokens can be committed")
        expected = history[cache.length : cache.length + len(tokens)]
        if len(expected) != len(tokens) or (own and not (expected == tokens).all()):
            raise DecoderError(
                f"rows at {cache.length} must be the sequence's own tokens "
                f"{expected.tolist()}, not {tokens.tolist()}"
            )


def _slots(store: Store | Overwrite, cache: KVCache, start: int, count: int) -> NDArray[np.int32]:
    if isinstance(store, Overwrite):
        slots = store.slots
        # Behind the committed rows is the draft, if there is one.
        end = cache.length if len(cache.tentative) else cache.capacity
        if len(slots) and not (slots.min() >= -1 and slots.max() < end):
            raise DecoderError(f"slots {slots}: only those below {end} can be overwritten now")
        return slots
    if store is Store.COMMIT:
        return np.arange(start, start + count, dtype=np.int32)
    return np.full(count, -1, np.int32)


def _extended(forward: Forward, tentative: TokenTree) -> TokenTree:
    """The tentative rows, those of ``forward`` included."""
    under, tree = forward.under, forward.tree
    if under is not None:
        if len(under) != len(tree):
            raise InvalidInput("under", under, f"give one for each of the tree's {len(tree)} rows")
        unknown = (under < ROOT) | (under >= len(tentative) + np.arange(len(tree)))
        if (unknown & (tree.parents == ROOT)).any():
            raise DecoderError(f"tree rows hang under unknown tentative rows {under.tolist()}")
    return tentative.extend(tree, under)


_NONE = np.empty(0, np.int32)
_INDICES = ("tokens", "under", "places", "positions", "visible", "logits", "attention")


def _checked(forward: Forward) -> Forward:
    """The forward with its parts in the types that the engine relies on."""
    parts: dict[str, Any] = {}
    for name in _INDICES:
        given = getattr(forward, name)
        right = isinstance(given, np.ndarray) and given.dtype == np.int32 and given.ndim == 1
        if not right and (given is not None or name == "tokens"):
            parts[name] = indices(name, given)
    if isinstance(forward.store, Overwrite):
        parts["store"] = Overwrite(indices("slots", forward.store.slots))
    if not isinstance(forward.tree, TokenTree):
        raise DecoderError(f"tree must be a TokenTree, not {type(forward.tree).__name__}")
    layers = None if forward.layers is None else tuple(forward.layers)
    if layers is not None and not all(map(is_layer, layers)):
        raise DecoderError(
            "layers must be numbers of layers, or Half(number, 'attention' or 'mlp'), not "
            f"{layers!r:.80}"
        )
    if layers is not forward.layers:
        parts["layers"] = layers
    if not isinstance(forward.hidden, tuple):
        parts["hidden"] = tuple(forward.hidden)
    return replace(forward, **parts) if parts else forward
