"""Run small networks and draft heads in the native core; a network needs no loaded model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.run import run_head
from paradecode.backends.native._core import DraftHead, HeadMemory
from paradecode.backends.native._core import Network as NativeNetwork
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Block, Head, HeadDraft, Memory, took_in
from paradecode.core.network import KINDS, Array, Item, Network
from paradecode.core.tree import EMPTY, TokenTree

_made: WeakKeyDictionary[Network, NativeNetwork] = WeakKeyDictionary()


def run_networks(network: Network, items: Sequence[Item]) -> list[Array]:
    """Run a network in the core; arguments and result are those of ``Backend.apply``."""
    native = native_network(network)
    for item in items:
        network.check(item)
    if not items:
        return []
    stacked = [_rows([item[name] for item in items], w) for name, w in network.inputs.items()]
    ends = np.cumsum([len(next(iter(item.values()))) for item in items]).tolist()
    return np.split(native.run(stacked, ends), ends[:-1])


def native_network(network: Network) -> NativeNetwork:
    """Return the packed network of the core, which lives as long as the Python object."""
    if network not in _made:
        _made[network] = _packed(network)
    return _made[network]


def _rows(parts: Sequence[NDArray[np.generic]], width: int) -> NDArray[np.generic]:
    return np.ascontiguousarray(np.concatenate(parts), np.float32 if width else np.int64)


def _packed(network: Network) -> NativeNetwork:
    values, tensors = [*network.widths], [*network.tensors]
    steps = [
        (
            KINDS.index(step.kind), [values.index(v) for v in step.values],
            [tensors.index(t) for t in step.tensors], step.count, step.number,
        )
        for step in network.steps
    ]  # fmt: skip
    arrays = [np.ascontiguousarray(t, np.float32) for t in network.tensors.values()]
    return NativeNetwork([*network.inputs.values()], steps, arrays, network.dtype)


class NativeHeads:
    """The packed draft heads of the core and the memories of requests.

    Each packed object lives as long as its Python object.

    Args:
        threads: number of threads of a draft, including the calling one. A head without a loop in
            the core runs network by network, on the calling thread alone.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._heads: WeakKeyDictionary[Head, DraftHead] = WeakKeyDictionary()
        self._memories: WeakKeyDictionary[Memory, HeadMemory] = WeakKeyDictionary()

    def native(self, head: Head) -> DraftHead:
        """Return the packed head.

        Raises:
            InvalidInput: its networks have other inputs than a head's, or do not fit together.
        """
        if head not in self._heads:
            self._heads[head] = _native(head, self.threads)
        return self._heads[head]

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        """Run a network; arguments and result are those of ``Backend.apply``."""
        return run_networks(network, items)

    def pack(self, head: Head) -> None:
        """Pack a head, if the core has a loop for it."""
        if _loops(head):
            self.native(head)

    def run_head(self, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        """Draft with a head, like :func:`paradecode.backends.heads.run.run_head`."""
        if not _loops(head):
            return run_head(head, drafts, self.apply)
        native = self.native(head)  # To pack it once says nothing of later drafts.
        started = time.perf_counter()
        given = [
            (
                self._memory(native, draft.memory), draft.memory.length,
                np.ascontiguousarray(draft.features, np.float32),
                np.ascontiguousarray(draft.tokens, np.int64),
                draft.start, draft.count, draft.width, draft.depth, draft.least,
                (draft.warp.temperature, draft.warp.top_k, draft.warp.top_p, draft.warp.min_p),
                draft.keys,
            )
            for draft in drafts
        ]  # fmt: skip
        trees, levels = native.draft(given)
        took_in(head, drafts, started, levels)
        return [TokenTree(*tree) if len(tree[0]) else EMPTY for tree in trees]

    def close(self) -> None:
        """Free the packed heads and memories."""
        self._heads.clear()
        self._memories.clear()

    def _memory(self, native: DraftHead, memory: Memory) -> HeadMemory:
        if memory not in self._memories:
            self._memories[memory] = native.memory()
        return self._memories[memory]


def _loops(head: Head) -> bool:
    """Return whether the core has a loop for this head; the target runs the rows of some heads."""
    rows = head.prompts is not None or len(head.transfers) > 0
    return not (rows or head.on_text or head.cell is not None or head.lstm)


def _native(head: Head, threads: int) -> DraftHead:
    return DraftHead(
        width=head.width,
        enter=_reading(head.enter, "features"),
        blocks=[_block(block, first=number == 0) for number, block in enumerate(head.blocks)],
        outs=[_reading(out, "state") for out in head.outs],
        back=None if head.back is None else _reading(head.back, "state"),
        to_target=[] if head.to_target is None else head.to_target.tolist(),
        mask=[] if head.mask is None else head.mask[0].ravel().tolist(),
        mask_token=0 if head.mask is None else head.mask[1],
        threads=threads,
    )


def _block(block: Block, first: bool) -> tuple[object, ...]:
    return (
        _reading(block.before, *(("state", "token") if first else ("state",))),
        _reading(block.after, "mixed", "rest"),
        block.heads, block.kv_heads, block.size, block.frequencies.tolist(), block.epsilon,
        *(None if gain is None else gain.tolist() for gain in (block.q_norm, block.k_norm)),
    )  # fmt: skip


def _reading(network: Network, *inputs: str) -> NativeNetwork:
    if tuple(network.inputs) != inputs:
        fix = f"its network reads {', '.join(inputs)}, in this order"
        raise InvalidInput("head", [*network.inputs], fix)
    return native_network(network)
