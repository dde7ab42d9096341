"""Run new rows through the blocks of a head: store their keys and values, and attend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.head import Array, Block, Head, HeadDraft, Item, Run

ROWS_AT_A_TIME = 256


@dataclass(frozen=True)
class NewRows:
    """The positions of new rows, and which of the uncommitted rows each of them sees.

    Attributes:
        positions: int64 [n], rotary positions.
        seen: bool [n, m], over the m newest uncommitted rows.
    """

    positions: NDArray[np.int64]
    seen: NDArray[np.bool_]


def through(
    head: Head, drafts: Sequence[HeadDraft], at: Sequence[int], states: Sequence[Array],
    tokens: Sequence[NDArray[np.int64]], views: Sequence[NewRows], run: Run,
) -> Sequence[Array]:  # fmt: skip
    """Run new rows through all blocks; return their states, and store keys and values at ``at``.

    Args:
        at: for each request, the slot of its first new row.
        states: float32 [n, width] for each request; not read by heads with ``Head.on_text``.
        tokens: tokens of the rows [n], or n-grams [n, grams], the oldest token first.
        views: positions and visibility of each request's rows.
    """
    for number, block in enumerate(head.blocks):
        items: list[Item] = [{"state": state} for state in states]
        if number == 0:
            items = _first_inputs(head, states, tokens)
        mixed = []
        for draft, place, view, made in zip(drafts, at, views, run(block.before, items)):
            q, k, v, rest = _split(block, made)
            end, seen = draft.memory.length + len(draft.tokens), view.seen[:, :0]
            if not block.crosses:
                draft.memory.store(
                    number, place, block.rotated(k, block.k_norm, view.positions),
                    v.reshape(len(v), -1, block.size), _oldest(block, draft),
                )  # fmt: skip
                end, seen = place + len(made), view.seen
            ahead = int(view.positions[0]) - draft.start - len(draft.tokens)
            oldest = _oldest(block, draft, ahead)
            keys, values = draft.memory.rows(number, oldest, end)
            if block.causal:
                seen = np.tril(seen)
            if block.trails:
                seen = _trailing(block, seen, place, oldest)
            q = block.rotated(q, block.q_norm, view.positions)
            mixed.append({"mixed": _attend(q, keys, values, seen), "rest": rest})
        states = run(block.after, mixed)
    return states


def _first_inputs(
    head: Head, states: Sequence[Array], tokens: Sequence[NDArray[np.int64]]
) -> list[Item]:
    if head.on_text:
        names = ["token", *(f"token{back}" for back in range(1, head.grams))]
        return [dict(zip(names, each.reshape(len(each), -1).T[::-1])) for each in tokens]
    return [{"state": state, "token": each} for state, each in zip(states, tokens)]


def keep_text(head: Head, drafts: Sequence[HeadDraft], run: Run) -> None:
    """Store the keys and values of new committed rows, which the blocks see."""
    text = run(head.enter, [{"features": draft.features} for draft in drafts])
    for number, block in enumerate(head.blocks):
        gain = block.text_norm
        if block.text is not None:
            width = block.text.inputs["state"]
            own = slice(block.part * width, (block.part + 1) * width)
            rows = run(block.text, [{"state": each[-block.window :, own]} for each in text])
            pairs = [np.split(made, 2, axis=1) for made in rows]
        else:
            gain = block.k_norm
            seen = [_own_tokens(draft)[-block.window :] for draft in drafts]
            rows = run(block.before, [{"token": tokens} for tokens in seen])
            pairs = [_split(block, made)[1:3] for made in rows]
        for draft, (keys, values) in zip(drafts, pairs):
            before = len(draft.tokens) - len(keys)  # Rows outside of the window.
            places = draft.start + before + np.arange(len(keys))
            draft.memory.store(
                number, draft.memory.length + before, block.rotated(keys, gain, places),
                values.reshape(len(values), -1, block.size), _oldest(block, draft),
            )  # fmt: skip


def _split(block: Block, made: Array) -> list[Array]:
    """Split the result of ``block.before`` into queries, keys, values and the input ``rest``."""
    wide, narrow = block.heads * block.size, block.kv_heads * block.size
    narrow = 0 if block.crosses else narrow
    return np.split(made, np.cumsum([wide, narrow, narrow]), axis=1)


def _own_tokens(draft: HeadDraft) -> NDArray[np.int64]:
    """Return the token of each new row.

    If the first row's token is unknown, the next row's token is used.
    """
    recent = draft.memory.recent
    return np.append(recent[-1:] if len(recent) else draft.tokens[:1], draft.tokens[:-1])


def _oldest(block: Block, draft: HeadDraft, ahead: int = 0) -> int:
    """Return the first slot that a row sees ``ahead`` positions after the last known token."""
    known = draft.memory.length + len(draft.tokens)
    return max(0, known + min(ahead - block.window, 0)) if block.window else 0


def _trailing(block: Block, seen: NDArray[np.bool_], place: int, oldest: int) -> NDArray[np.bool_]:
    """Return who sees the slots from ``oldest`` on, if each row has a window of its own."""
    own = place + np.arange(len(seen))[:, None]
    return np.pad(seen, ((0, 0), (place - oldest, 0)), constant_values=True) & (
        np.arange(oldest, place + len(seen)) >= own - block.window
    )


def _attend(q: Array, keys: Array, values: Array, seen: NDArray[np.bool_]) -> Array:
    """Return the result of attention, float32 [n, heads * size].

    ``seen`` says who sees the last ``seen.shape[1]`` rows; every row sees all earlier rows.

    Args:
        q: [n, heads, size].
        keys, values: [kv_heads, m, size].
        seen: bool [n, up to m].
    """
    rows, heads, size = q.shape
    groups, known, _ = keys.shape
    first = known - seen.shape[1]
    out = np.empty((rows, heads * size), np.float32)
    for start in range(0, rows, ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        query = q[part].reshape(-1, groups, heads // groups, size).transpose(1, 2, 0, 3)
        query = np.ascontiguousarray(query * np.float32(size**-0.5)).reshape(groups, -1, size)
        scores = (query @ keys.swapaxes(1, 2)).reshape(groups, heads // groups, -1, known)
        scores[..., first:][..., ~seen[part]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = weights.reshape(groups, -1, known) @ values
        mixed = mixed.reshape(groups, heads // groups, -1, size)
        out[part] = mixed.transpose(2, 0, 1, 3).reshape(-1, heads * size)
    return out
