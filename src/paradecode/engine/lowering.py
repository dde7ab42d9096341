"""Translates a method's forward pass into a backend's span, and checks it.

A row is one position in a forward: its token goes in, and keys, values and logits come out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Span, WindowPages, gives_attention
from paradecode.core.checks import indices, is_whole
from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Store
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.layers import halves, is_layer
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.engine.kv import KVCache, given_rows

# The cached slots and the rows that each row attends to. Only forwards that name slots, or whose
# rows are neither plain text nor a chain, need this.


def seen_slots(forward: Forward, cache: KVCache) -> NDArray[np.int32] | None:
    """Return int32 [V], the cached slots that the rows attend to; None means all committed slots.

    Rows that replace slots attend to the new content.

    Raises:
        DecoderError: if a slot of ``forward.visible`` is empty.
    """
    named = forward.visible
    if named is not None and not cache.holds(named, forward.layers):
        raise DecoderError("visible names slots in which no keys and values were stored")
    if not isinstance(forward.store, Overwrite):
        return named
    seen = np.arange(cache.length, dtype=np.int32) if named is None else named
    replaced = np.zeros(cache.capacity + 1, bool)  # -1, for rows that replace none, is the last.
    replaced[forward.store.slots] = True
    return seen[~replaced[seen]]


def mask_of(
    forward: Forward, at: NDArray[np.int32], held: int, tentative: TokenTree
) -> NDArray[np.bool_]:
    """Return bool [K + M, T + K + M]: the tentative slots and new rows that each row attends to.

    Without a draft, T counts as 0.

    Args:
        at: int32 [K], positions of the ``tokens`` rows.
        held: T, the number of tentative rows in the cache.
        tentative: the tree of all tentative rows, with the forward pass's tree at its end.
    """
    count, drafted = len(at), len(forward.tree)
    rows, width = count + drafted, held if drafted else 0
    mask = np.zeros((rows, width + rows), bool)
    mask[:count, width : width + count] = _among(forward.attend, at)
    if drafted:
        mask[count:, width : width + count] = True
        seen = tentative.visibility[held:]
        mask[count:, :held], mask[count:, width + count :] = seen[:, :held], seen[:, held:]
    return mask


def _among(
    attend: Attend | BlockCausal | NDArray[np.bool_], positions: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return bool [K, K]: True where a ``tokens`` row of the forward attends to another one."""
    count = len(positions)
    if isinstance(attend, BlockCausal):
        blocks = positions // attend.size
        return blocks[:, None] >= blocks[None, :]
    if isinstance(attend, np.ndarray):
        if attend.shape != (count, count) or attend.dtype != np.bool_:
            raise DecoderError(f"attend must be bool [{count}, {count}], not {attend.shape}")
        return attend
    return np.tri(count, dtype=bool) if attend is Attend.CAUSAL else np.ones((count, count), bool)


def span_of(forward: Forward, cache: KVCache, history: NDArray[np.int32]) -> tuple[Span, TokenTree]:
    """Return the span that a backend runs for ``forward``, and the tentative rows after it.

    This takes the pages that the forward pass will write. Nothing else of the cache changes before
    the forward has succeeded and is recorded.

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
        # Rows of committed tokens have slots of their own, and need no scratch slots.
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
    states = None
    if cache.recalled is not None:
        states = cache.recalled.plan(forward, cache.length, slots, cache.marks)
    named = forward.visible is not None or isinstance(forward.store, Overwrite)
    plain = not drafted or (tree.is_chain and not held)  # The span's default mask.
    causal = forward.attend is Attend.CAUSAL and plain
    wanted = forward.logits
    if wanted is None:  # The root, then the nodes.
        wanted = np.arange(max(count - 1, 0), count + drafted, dtype=np.int32)
    if not all(is_whole(one) and -layers <= one < layers for one in forward.hidden):
        raise DecoderError(f"hidden layers {forward.hidden}: the model has {layers}")
    pages, windows = page_tables(cache)
    span = Span(
        pages=pages,
        windows=windows,
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
        states=states,
    )
    return span, tentative


def page_tables(cache: KVCache) -> tuple[NDArray[np.int32], dict[int, WindowPages]]:
    """Return ``Span.pages`` and ``Span.windows`` of a cache."""
    pages, windows = _NONE, {}
    for table in cache.tables:
        own = np.array(table.pages, np.int32)
        if table.pool.window:
            windows[table.pool.window] = WindowPages(table.first, own)
        else:
            pages = own
    return pages, windows


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
    # The sequence's own tokens were checked when they were committed.
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
        # The draft, if there is one, follows the committed rows.
        end = cache.length if len(cache.tentative) else cache.capacity
        if len(slots) and not (slots.min() >= -1 and slots.max() < end):
            raise DecoderError(f"slots {slots}: only those below {end} can be overwritten now")
        return slots
    if store is Store.COMMIT:
        return np.arange(start, start + count, dtype=np.int32)
    return np.full(count, -1, np.int32)


def _extended(forward: Forward, tentative: TokenTree) -> TokenTree:
    """Return the tentative rows of the cache, followed by the tree rows of ``forward``."""
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


def checked(forward: Forward) -> Forward:
    """Return the forward pass with its fields in the types that the engine relies on.

    Raises:
        InvalidInput, DecoderError: if a field has an unusable value.
    """
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
