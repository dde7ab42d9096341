"""Keys and values: one sequence's cache in the page pools of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Backend
from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite, Store
from paradecode.core.errors import CapacityError, DecoderError
from paradecode.core.layers import Layers, halves
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.pages import PagePool, PageTable, reach
from paradecode.engine.slots import StoredSlots
from paradecode.engine.states import EVERY, SequenceStates, StatePools
from paradecode.models.config import ModelConfig


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
        most: largest number of pages that the request may hold; 0 means any.
        states: pools of a model with layers that keep a state, or None.

    Attributes:
        recalled: records and states of such layers, or None.
        tables: the page table of each pool of ``pool.kinds``.
        ran: the layers that the tentative rows went through, if these are not all layers. Such rows
            are partial: they are dropped unless they continue through the other layers
            (:meth:`join`).
        states: float32 [M, hidden size], the outputs of the last layer of ``ran`` for the tentative
            rows, if the forward requested them.
        filled: which slots hold keys and values of each layer. None if all committed rows hold keys
            and values of all layers, and no later slot was written.
        final: for a model with blocks: number of leading slots with the same content in any request
            with these tokens. They are whole blocks of committed tokens.
        slides: whether the layers with a window lose the pages that the window has passed.
        reusable: whether other requests may share the full pages.
        marks: numbers of leading pages before which a window's pages stay for later requests: where
            the prompt ends, and where an earlier request went on differently.
    """

    def __init__(
        self,
        backend: Backend,
        pool: PagePool,
        key: bytes,
        scratch: int,
        capacity: int = 0,
        most: int = 0,
        states: StatePools | None = None,
    ) -> None:
        self.backend, self.scratch, self.most = backend, scratch, most
        self.tables = [PageTable(kind) for kind in pool.kinds]
        self.recalled = None if states is None else SequenceStates(backend, states)
        self.marks: set[int] = set()
        self.length = 0
        self.tentative = EMPTY
        self.ran: Layers | None = None
        self.states: NDArray[np.float32] | None = None
        self.capacity = capacity
        self.filled: StoredSlots | None = None
        self._keys = [key]
        about = backend.config
        self.slides = slides(about)
        self.blocks = about.block_length if about.attention == "block" else 0
        self.final = 0
        # With full attention, keys and values depend on later tokens.
        self.reusable = about.attention != "full"

    def reuse(self, tokens: NDArray[np.int32]) -> int:
        """Take published pages that hold a prefix of ``tokens``; return the number of tokens.

        Layers with a sliding window need only the last window of it.
        """
        if self.reusable and self.length == 0:
            self._keys, count, stored = self._found(tokens)
            for table in self.tables:
                table.first = self._reach(count, table)
                found = map(table.pool.find, self._keys[table.first + 1 :])
                table.pages = [table.pool.share(page) for page in found if page is not None]
            self.length = count * PAGE
            if self.recalled is not None and count:
                self.recalled.begin(count, self._keys[count])
            # There the pages of a window would have helped this request.
            self.marks = {len(tokens) // PAGE, stored} - {count}
        if self.blocks and self.length:  # A canvas restarts after the last whole block.
            self.final, self.length = self.length // self.blocks * self.blocks, 0
            self._fill(np.arange(self.final))
        return self.length or self.final

    @property
    def pages(self) -> list[int]:
        """The page table of the layers that see most."""
        return self.tables[0].pages

    def _reach(self, page: int, table: PageTable) -> int:
        """Return the first page that rows from the start of ``page`` on can see."""
        return reach(page, table.pool.window) if self.slides else 0

    def _found(self, tokens: NDArray[np.int32]) -> tuple[list[bytes], int, int]:
        """Look for published pages of a prefix of ``tokens``.

        Returns:
            The keys of the prefix, its pages, and the pages that layers without a window have.
        """
        keys, count, stored, runs = self._keys[:1], 0, 0, [0] * len(self.tables)
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            keys.append(next_key(keys[-1], tokens[start : start + PAGE]))
            for number, table in enumerate(self.tables):
                runs[number] = 0 if table.pool.find(keys[-1]) is None else runs[number] + 1
            page = start // PAGE + 1
            known = self.recalled is None or self.recalled.has(keys[-1])
            seen = zip(runs, self.tables)
            if known and all(run >= page - self._reach(page, table) for run, table in seen):
                count = page
            if runs[0] == page:
                stored = page
            elif not self.tables[0].pool.window:
                break
        return keys[: count + 1], count, stored

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
        if self.recalled is not None:
            spare = self.recalled.wrote(forward.layers)
            at_base = {self.recalled.base: self.recalled.slot} if self.recalled.slot >= 0 else {}
            for page, slot in {**spare, **at_base}.items() if self.reusable else ():
                if page in spare or page in self.marks or page % EVERY == 0:
                    self.recalled.publish(slot, self._keys[page])
            self.recalled.release_spare(spare.values())

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
        """True if the cache holds all layers of the committed tokens, and nothing else."""
        return self.filled is None and not len(self.tentative)

    def fork(self) -> KVCache:
        """Return a copy that shares every page; a shared page is copied before it is written."""
        pool = self.tables[0].pool
        twin = KVCache(self.backend, pool, self._keys[0], self.scratch, self.capacity, self.most)
        twin.filled, twin.marks = deepcopy(self.filled), self.marks
        for own, table in zip(twin.tables, self.tables):
            own.share(table)
        twin.recalled = None if self.recalled is None else self.recalled.fork()
        twin.length, twin.reusable, twin._keys = self.length, self.reusable, list(self._keys)
        twin.final = self.final
        return twin

    def release(self) -> None:
        """Give back all pages; later requests find the last window of the text."""
        end = len(self._keys) - 1
        if self.recalled is not None:
            if self.reusable and 0 < self.recalled.base <= end:
                self.recalled.publish(self.recalled.slot, self._keys[self.recalled.base])
            self.recalled.release()
        for table in self.tables:
            if self.reusable and table.pages:
                for index in range(self._reach(end, table), end):
                    table.publish(index, self._keys[index + 1])
            table.release()
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
        """Take or copy pages so that no other cache shares the pages of ``slots`` (-1: no slot).

        Raises:
            DecoderError: a sliding window has passed a slot.
            CapacityError: no page is left.
        """
        touched = sorted({slot // PAGE for slot in slots.tolist() if slot >= 0})
        main = self.tables[0]
        if touched and self.most and touched[-1] - main.first >= self.most:
            raise CapacityError(
                f"a sliding window keeps {self.most} pages of a request, but its method stores "
                "rows without committing them"
            )
        for table in self.tables:
            table.own(touched, partial(self._copy_page, table.pool.window))

    def _copy_page(self, window: int, page: int, fresh: int) -> None:
        rows = np.arange(PAGE, dtype=np.int64)
        self.backend.copy(page * PAGE + rows, fresh * PAGE + rows, window)

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
            for table in self.tables:
                window = table.pool.window
                self.backend.copy(table.physical(source), table.physical(target), window)
            if self.recalled is not None:
                self.recalled.move(source, target)

    def _publish(self, history: NDArray[np.int32]) -> None:
        """Offer the pages that are full to later requests; then drop what no row sees any more."""
        stored = min(self.final if self.blocks else self.length, len(history))
        while self.reusable and len(self._keys) * PAGE <= stored:
            index = len(self._keys) - 1
            self._keys.append(next_key(self._keys[-1], history[index * PAGE : (index + 1) * PAGE]))
            for table in self.tables:
                window = table.pool.window if self.slides else 0
                if not window or any(reach(m, window) <= index < m for m in self.marks):
                    table.publish(index, self._keys[-1])
        for table in self.tables:
            if table.pool.window and self.slides:
                # One row before the committed end may still go through further layers.
                table.forget((self.length // PAGE * PAGE - table.pool.window) // PAGE)


def slides(config: ModelConfig) -> bool:
    """Return whether a sequence runs each row once, so that sliding windows can drop pages."""
    return config.attention == "causal" and config.mask_token is None
