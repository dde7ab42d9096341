"""Keys and values: the page pool of a model, and one sequence's cache in it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain, islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Backend
from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Store
from paradecode.core.errors import CapacityError, DecoderError
from paradecode.core.layers import Layers, halves
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.slots import StoredSlots

CHANGES = 8192
"""Number of remembered changes of a pool's published pages. A reader that has missed more reads all
keys; a higher number uses more memory."""


class PagePool:
    """The K/V pages of one model.

    Every page is free, held (by one or more sequences), or idle. An idle page has no holder but is
    published under a key, so that a later request with the same prefix can reuse it. When no page
    is free, the oldest idle page is recycled.

    Args:
        count: number of pages.

    Attributes:
        changes: number of times that a key was published or removed.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._changes: deque[bytes] = deque(maxlen=CHANGES)
        self.changes = 0

    @property
    def available(self) -> int:
        """Number of pages that can be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        return self.count - self.available

    @property
    def idle(self) -> int:
        """Number of pages that only the prefix index keeps."""
        return len(self._idle)

    def take(self) -> int:
        """Take a page for one holder. Raises CapacityError if all pages are held."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            key = self._key_of.pop(page)
            del self._page_of[key]
            self._note(key)
        else:
            raise CapacityError(f"all {self.count} K/V pages are in use; raise kv_tokens")
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """Add a holder to a held or idle page, and return the page."""
        self._idle.pop(page, None)
        self._holders[page] += 1
        return page

    def release(self, page: int) -> None:
        """Remove one holder of the page."""
        if self._holders[page] <= 0:
            raise AssertionError(f"page {page} released more often than taken")
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def writable(self, page: int) -> bool:
        """Return whether only one sequence holds the page and no later request can find it."""
        return self._holders[page] == 1 and page not in self._key_of

    def publish(self, page: int, key: bytes) -> None:
        """Offer a full page to later requests; the first page of a key stays."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key
            self._note(key)

    def find(self, key: bytes) -> int | None:
        return self._page_of.get(key)

    def changed(self, since: int | None) -> tuple[bool, list[bytes], list[bytes]]:
        """Return how the published pages have changed after the first ``since`` changes.

        Returns:
            Whether the lists hold all published keys, because ``since`` is None or too long ago;
            the keys that are published; and the keys that are no longer published.
        """
        old = self.changes - len(self._changes)
        if since is None or not old <= since <= self.changes:
            return True, list(self._page_of), []
        keys = dict.fromkeys(islice(self._changes, since - old, None))
        stored = [key for key in keys if key in self._page_of]
        return False, stored, [key for key in keys if key not in self._page_of]

    def _note(self, key: bytes) -> None:
        self._changes.append(key)
        self.changes += 1

    def check(self, held_by: list[list[int]]) -> None:
        """Assert that this pool agrees with the page tables of all live sequences."""
        counts = [0] * self.count
        for page in chain.from_iterable(held_by):
            counts[page] += 1
        assert counts == self._holders, "page holders differ from the live page tables"
        held, free, idle = set(chain.from_iterable(held_by)), set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert len(held) + len(free) + len(idle) == self.count, "a page leaked"
        assert len(held | free | idle) == self.count, "a page is held, free or idle at a time"
        pages = list(map(self._page_of.get, self._key_of.values()))
        assert pages == list(self._key_of), "a page is found by another page's key"
        assert idle <= set(self._key_of), "an idle page has no key"


def _as_text(forward: Forward) -> bool:
    """Return whether the rows depend on all tokens before them, and on nothing else."""
    changed = (forward.embeddings, forward.resume, forward.visible, forward.positions)
    return forward.attend is Attend.CAUSAL and all(part is None for part in changed)


def given_rows(forward: Forward) -> int:
    """Return the number of tree rows whose input is a given vector in place of a token."""
    return 0 if forward.given is None else len(forward.given)


def first_key(salt: str, model: str) -> bytes:
    """Return the key before the first page; tenants with different salts never share pages."""
    return hashlib.blake2b(f"{len(salt)}:{salt}{model}".encode(), digest_size=16).digest()


def next_key(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
    """Return the key of a page with ``tokens`` [PAGE], which follows the page of ``previous``."""
    assert len(tokens) == PAGE
    return hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest()


class KVCache:
    """One sequence's keys and values in one model.

    Slots 0 to ``length - 1`` hold the rows of the sequence's first ``length`` tokens. The slots
    after them hold *tentative* rows: draft tokens that may still be rejected. Node i of the tree
    ``tentative`` is in slot ``length + i``. :meth:`record` records a forward that succeeded.
    :meth:`settle` keeps the tentative rows of committed tokens and drops the others.

    Args:
        backend, pool: the model and its pages.
        key: prefix key before the first page (from salt and model).
        scratch: largest number of tentative rows.
        capacity: number of slots that were reserved for this request.

    Attributes:
        pages: the page table.
        ran: the layers that the tentative rows went through, if these are not all layers. Such rows
            are partial: they are dropped unless they continue through the other layers
            (:meth:`join`).
        states: float32 [M, hidden size], the outputs of the last layer of ``ran`` for the tentative
            rows, if the forward requested them.
        filled: which slots hold keys and values of each layer. None if all committed rows hold keys
            and values of all layers, and no later slot was written.
        final: for a model with blocks: number of leading slots with the same content in any request
            with these tokens. They are whole blocks of committed tokens.
        reusable: whether other requests may share the full pages.
    """

    def __init__(
        self, backend: Backend, pool: PagePool, key: bytes, scratch: int, capacity: int = 0
    ) -> None:
        self.backend, self.pool, self.scratch = backend, pool, scratch
        self.pages: list[int] = []
        self.length = 0
        self.tentative = EMPTY
        self.ran: Layers | None = None
        self.states: NDArray[np.float32] | None = None
        self.capacity = capacity
        self.filled: StoredSlots | None = None
        self._keys = [key]
        about = backend.config
        self.blocks = about.block_length if about.attention == "block" else 0
        self.final = 0
        # With full attention, keys and values depend on later tokens.
        self.reusable = about.attention != "full"

    def reuse(self, tokens: NDArray[np.int32]) -> int:
        """Take published pages that hold a prefix of ``tokens``; return the number of tokens."""
        if self.reusable and self.length == 0:
            for start in range(0, len(tokens) - PAGE + 1, PAGE):
                key = next_key(self._keys[-1], tokens[start : start + PAGE])
                page = self.pool.find(key)
                if page is None:
                    break
                self.pages.append(self.pool.share(page))
                self._keys.append(key)
                self.length += PAGE
        if self.blocks and self.length:  # A canvas restarts after the last whole block.
            self.final, self.length = self.length // self.blocks * self.blocks, 0
            self._fill(np.arange(self.final))
        return self.length or self.final

    def record(
        self,
        forward: Forward,
        tentative: TokenTree,
        history: NDArray[np.int32],
        hidden: Mapping[int, NDArray[np.float32]] = MappingProxyType({}),
    ) -> None:
        """Record a forward that succeeded.

        Args:
            tentative: all tentative rows, including the forward's.
            history: int32 [n], all committed tokens.
            hidden: layer -> float32 [rows of the forward, hidden size], its hidden states.
        """
        count, layers = len(forward.tokens), forward.layers
        if self.joins(forward):
            # A forward with tokens completes these rows: they have gone through all layers.
            layers = None if count else (*(self.ran or ()), *(layers or ()))
            self._append(count)
            self.drop()
        elif forward.store is Store.COMMIT:
            if not _as_text(forward):
                self.reusable = False
            if layers is not None and count:
                self._fill(np.arange(self.length, self.length + count), layers)
                self.length += count
                self.reusable = False
            else:
                self._append(count)
        elif isinstance(forward.store, Overwrite):
            self.reusable = self.reusable and self.blocks > 0
            if self.reusable:
                self.final = self._final(forward, forward.store.slots, history)
            written = forward.store.slots[forward.store.slots >= 0]
            if self.filled is not None or (len(written) and int(written.max()) >= self.length):
                self._fill(written, layers)
        if len(forward.tree) and forward.places is None:
            if self.filled is not None:  # No forward may name these slots yet.
                self.filled.clear(self.length, self.length + len(tentative))
            sound = _as_text(forward)
            if layers is None and not (sound and (forward.store is Store.COMMIT or not count)):
                self.reusable = False  # Other requests have other rows there.
            self._extend(tentative, layers, hidden if sound and not count else {})
        self._publish(history)

    def _extend(
        self, tentative: TokenTree, layers: Layers | None, hidden: Mapping[int, NDArray[np.float32]]
    ) -> None:
        """Record that the newest tentative rows have gone through ``layers``."""
        held, states = len(self.tentative), None
        if layers and (last := halves(layers[-1])[0]) in hidden:
            states = hidden[last][held - len(tentative) :]
        if held == 0:
            self.ran, self.states = layers, states
        elif self.states is not None and states is not None and layers == self.ran:
            self.states = np.concatenate([self.states, states])
        else:
            self.ran, self.states = layers if self.ran is None else self.ran, None
        self.tentative = tentative

    def _final(self, forward: Forward, slots: NDArray[np.int32], history: NDArray[np.int32]) -> int:
        """Return the new value of :attr:`final` after a forward stores rows in ``slots``.

        Rows with slot -1 are not stored.
        """
        written, at, seen = slots[slots >= 0], forward.positions, forward.visible
        if not len(written) or at is None or seen is None:
            return min([self.final, *written.tolist()])
        first, count = int(at[0]), len(at)
        whole = forward.layers is None and forward.embeddings is None and forward.resume is None
        attend = forward.attend
        whole = whole and isinstance(attend, BlockCausal) and attend.size == self.blocks
        # The forward has all rows after a number of whole final blocks, and the rows see all these
        # blocks.
        behind = first % self.blocks == 0 and first <= self.final
        behind = behind and np.array_equal(at, np.arange(first, first + count))
        if not (whole and behind and np.array_equal(seen, np.arange(first))):
            return min(self.final, int(written.min()))
        count = min(count, max(len(history) - first, 0))
        stored = slots[:count] == at[:count]
        good = np.append(stored & (forward.tokens[:count] == history[first : first + count]), False)
        end = (first + int(good.argmin())) // self.blocks * self.blocks
        return end if ((written >= end) & (written < self.final)).any() else max(end, self.final)

    def settle(self, committed: NDArray[np.int32], history: NDArray[np.int32]) -> int:
        """Keep the tentative rows on the path of ``committed``, and drop the others.

        Args:
            committed: int32 [c], the tokens just appended to the sequence.
            history: int32 [n], all committed tokens, including ``committed``.

        Returns:
            The number of rows that were kept.
        """
        path: list[int] = []
        drafted = len(self.tentative.tokens) and self.ran is None
        if drafted and self.length == len(history) - len(committed):
            path = self.tentative.follow(committed.tolist())
        self._line_up(path)
        self.drop()
        # The newest token stays pending even if its row is stored: its logits are needed next.
        self._append(min(len(path), len(history) - 1 - self.length))
        self._publish(history)
        return len(path)

    def joins(self, forward: Forward) -> bool:
        """Return whether the forward continues partial rows through the layers that they lack.

        A forward with tokens must run all missing layers, so that the rows can be kept. A forward
        without tokens runs the next layers only.
        """
        if self.ran is None or forward.layers is None or forward.store is not Store.COMMIT:
            return False
        ran = (*self.ran, *forward.layers)
        whole = len(ran) == self.backend.config.layers
        goes_on = ran == tuple(range(len(ran))) and whole == (len(forward.tokens) > 0)
        return goes_on and forward.under is None and _as_text(forward)

    def join(self, forward: Forward) -> NDArray[np.float32]:
        """Prepare partial rows for a forward that :meth:`joins`: move each row to its final slot.

        Returns:
            float32 [K + M - G, hidden size]: the input of the forward's first layer, without the
            given rows.

        Raises:
            DecoderError: a row of the forward is not partial, or the rows' states were not
                requested.
        """
        tree = forward.tree.first(len(forward.tree) - given_rows(forward))
        last = np.full(len(tree), len(forward.tokens) - 1, np.int32)
        rows = TokenTree.chain(forward.tokens).extend(tree, last)
        found = rows.locate(self.tentative.child)
        nodes = list(dict.fromkeys(found[row] for row in range(len(rows)) if row in found))
        if len(nodes) < len(rows) or self.states is None:
            raise DecoderError(
                f"rows that go on through layers {forward.layers} must be tentative rows, each "
                "another one, whose states were asked for with 'hidden'"
            )
        self._line_up(nodes)
        self.tentative, self.states = rows, self.states[nodes]
        return self.states

    def follow(self, history: NDArray[np.int32]) -> None:
        """Record steps that the backend made: all of ``history`` but the newest token is stored."""
        self.length = len(history) - 1
        self._publish(history)

    @property
    def regular(self) -> bool:
        """Whether the cache holds all layers of committed tokens, and nothing else."""
        return self.filled is None and not len(self.tentative)

    def fork(self) -> KVCache:
        """Return a copy that shares every page; a shared page is copied before it is written."""
        twin = KVCache(self.backend, self.pool, self._keys[0], self.scratch, self.capacity)
        twin.filled = deepcopy(self.filled)
        twin.pages = [self.pool.share(page) for page in self.pages]
        twin.length, twin.reusable, twin._keys = self.length, self.reusable, list(self._keys)
        twin.final = self.final
        return twin

    def release(self) -> None:
        """Give back all pages."""
        for page in self.pages:
            self.pool.release(page)
        self.pages.clear()
        self.drop()
        self.length, self.final, self.filled = 0, 0, None

    def holds(self, slots: NDArray[np.integer], layers: Layers | None = None) -> bool:
        """Return whether ``slots`` hold keys and values of all attending layers of ``layers``.

        None means all layers.
        """
        if len(slots) == 0:
            return True
        if self.filled is None:
            return int(slots.min()) >= 0 and int(slots.max()) < self.length
        return self.filled.holds(slots, layers)

    def complete(self, layers: Layers | None) -> bool:
        """Return whether committed rows have keys and values of the attending ``layers``."""
        return self.filled is None or self.filled.leads(self.length, layers)

    def drop(self) -> None:
        """Forget the tentative rows."""
        self.tentative, self.ran, self.states = EMPTY, None, None

    def own(self, slots: NDArray[np.int32]) -> None:
        """Take or copy pages so that no other cache shares the pages of ``slots`` (-1: no slot)."""
        touched = sorted({slot // PAGE for slot in slots.tolist() if slot >= 0})
        while touched and len(self.pages) <= touched[-1]:
            self.pages.append(self.pool.take())
        for index in touched:
            page = self.pages[index]
            if not self.pool.writable(page):
                fresh = self.pool.take()
                rows = np.arange(PAGE, dtype=np.int64)
                self.backend.copy(page * PAGE + rows, fresh * PAGE + rows)
                self.pool.release(page)
                self.pages[index] = fresh

    def _append(self, rows: int) -> None:
        """Commit the next ``rows`` rows, which all layers have computed."""
        if self.filled is not None:
            self.filled.fill(np.arange(self.length, self.length + rows))
        self.length += rows

    def _fill(self, slots: NDArray[np.integer], layers: Layers | None = None) -> None:
        """Record that the attending layers of ``layers`` (None: all) stored rows in ``slots``."""
        if self.filled is None:
            self.filled = StoredSlots(self.backend.config.layers, self.capacity, self.length)
        self.filled.fill(slots, layers)

    def _line_up(self, nodes: list[int]) -> None:
        """Move the rows of ``nodes`` to the first tentative slots, in this order."""
        moves = [(node, place) for place, node in enumerate(nodes) if node != place]
        if moves:
            source, target = (np.array(moves, np.int64) + self.length).T
            self.backend.copy(self._physical(source), self._physical(target))

    def _publish(self, history: NDArray[np.int32]) -> None:
        stored = min(self.final if self.blocks else self.length, len(history))
        while self.reusable and len(self._keys) * PAGE <= stored:
            index = len(self._keys) - 1
            self._keys.append(next_key(self._keys[-1], history[index * PAGE : (index + 1) * PAGE]))
            self.pool.publish(self.pages[index], self._keys[-1])

    def _physical(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(self.pages, np.int64)[slots // PAGE] * PAGE + slots % PAGE
