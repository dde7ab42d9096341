"""One sequence's keys and values in one model: committed slots, then tentative ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.core.errors import DecoderError
from paradecode.core.layers import attending, is_number
from paradecode.core.request import Attend, BlockCausal, Forward, Overwrite, Store
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.engine.pages import PagePool, next_key


class Cache:
    """Slots 0 .. length - 1 hold the K/V of the sequence's first ``length`` tokens.

    Tentative rows sit in the slots behind them until :meth:`settle` keeps those on the committed
    path. Nothing here changes before a forward has succeeded: :meth:`plan` describes it,
    :meth:`record` books it.

    Args:
        backend, pool: the model and its pages.
        key: prefix key before the first page (salt and model).
        scratch: the most tentative rows.
        capacity: slots that a canvas may use: those that were set aside for this request.

    Attributes:
        tentative: the draft tokens whose keys and values are in the slots from ``length`` on.
        partial: they are those of some layers only, and can never be kept.
        layers: those whose keys and values every committed row holds; None for all.
        filled: of a canvas, which slots hold keys and values: bool [capacity]; else None.
    """

    def __init__(
        self, backend: Backend, pool: PagePool, key: bytes, scratch: int, capacity: int = 0
    ) -> None:
        self.backend, self.pool, self.scratch = backend, pool, scratch
        self.pages: list[int] = []
        self.length = 0
        self.tentative, self.partial = EMPTY, False
        self.layers: set[int] | None = None
        self.capacity = capacity
        self.filled: NDArray[np.bool_] | None = None
        self._keys = [key]
        # Only causal forwards of real tokens give K/V that another request may reuse.
        self.reusable = backend.config.attention == "causal"

    def reuse(self, tokens: NDArray[np.int32]) -> int:
        """Take published pages that hold a prefix of ``tokens``; returns how many tokens."""
        if self.reusable and self.length == 0:
            for start in range(0, len(tokens) - PAGE + 1, PAGE):
                key = next_key(self._keys[-1], tokens[start : start + PAGE])
                page = self.pool.find(key)
                if page is None:
                    break
                self.pages.append(self.pool.share(page))
                self._keys.append(key)
                self.length += PAGE
        return self.length

    def plan(self, forward: Forward, history: NDArray[np.int32]) -> Span:
        """The span of ``forward``; makes room for what it stores.

        Args:
            history: int32 [n], the sequence's committed tokens.

        Raises:
            DecoderError: if the forward contradicts the sequence or the model.
            CapacityError: if no page is left.
        """
        tokens, tree = np.asarray(forward.tokens, np.int32), forward.tree
        count, drafted = len(tokens), len(tree)
        if count + drafted == 0:
            raise DecoderError("a forward needs at least one row")
        partial = forward.layers is not None
        if not partial and self.partial:
            self._drop()  # Rows of some layers were scratch; now all layers run.
        held = len(self.tentative)
        self._check_tokens(forward, tokens, history)
        start = self.length + held
        if forward.positions is None:
            positions = np.arange(self.length, self.length + count, dtype=np.int32)
        else:
            positions = np.asarray(forward.positions, np.int32)
        slots = self._slots(forward.store, start, count)
        tail = tail_positions = _NONE
        tentative = self._extended(forward)
        if drafted:
            if held + drafted > self.scratch:
                raise DecoderError(
                    f"{held + drafted} draft tokens, but draft_tokens sets aside "
                    f"{self.scratch}; draft less or raise it"
                )
            root = self.length + (count if forward.store is Store.COMMIT else 0) - 1
            if not partial and root != len(history) - 1:
                raise DecoderError("a draft needs every committed token in the cache before it")
            positions = np.concatenate([positions, root + tentative.depths[held:]])
            first = start + (count if forward.store is Store.COMMIT else 0)
            slots = np.concatenate([slots, np.arange(first, first + drafted, dtype=np.int32)])
            if held:
                tail = np.arange(self.length, start, dtype=np.int32)
                tail_positions = root + tentative.depths[:held]
        if len(positions) and int(positions.max()) >= self.backend.config.context_length:
            raise DecoderError(
                f"position {int(positions.max())} is past the model's context of "
                f"{self.backend.config.context_length}"
            )
        if len(positions) != count + drafted or len(slots) != count + drafted:
            raise DecoderError("positions and slots must have one entry for each token")
        self._own(slots)
        wanted = forward.logits
        if wanted is None:  # The root, then the nodes.
            wanted = np.arange(max(count - 1, 0), count + drafted, dtype=np.int32)
        layers = self.backend.config.layers
        if not all(is_number(one) and -layers <= one < layers for one in forward.hidden):
            raise DecoderError(f"hidden layers {forward.hidden}: the model has {layers}")
        return Span(
            pages=np.array(self.pages, np.int32),
            tokens=np.concatenate([tokens, tree.tokens]) if drafted else tokens,
            positions=positions,
            slots=slots,
            context=self.length,
            visible=self._visible(forward),
            tail=tail,
            tail_positions=tail_positions,
            mask=self._mask(forward, positions[:count], tentative),
            logits=np.asarray(wanted, np.int32),
            hidden=tuple(layer % layers for layer in forward.hidden),
            layers=forward.layers,
            embeddings=forward.embeddings,
            resume=forward.resume,
        )

    def record(self, forward: Forward, history: NDArray[np.int32]) -> None:
        """Book a forward that succeeded."""
        count = len(forward.tokens)
        if forward.store is Store.COMMIT:
            self.length += count
            changed = (forward.embeddings, forward.resume, forward.visible, forward.positions)
            if forward.attend is not Attend.CAUSAL or any(part is not None for part in changed):
                self.reusable = False
            if forward.layers is not None and count:
                held = self._attending(forward)
                self.layers = held if self.layers is None else self.layers & held
                self.reusable = False
        elif isinstance(forward.store, Overwrite):
            self.reusable = False
            if self.length == 0:
                if self.filled is None:
                    self.filled = np.zeros(self.capacity, bool)
                self.filled[forward.store.slots[forward.store.slots >= 0]] = True
        if len(forward.tree):
            if len(self.tentative) == 0:
                self.partial = forward.layers is not None
            self.tentative = self._extended(forward)
        self._publish(history)

    def settle(self, committed: NDArray[np.int32], history: NDArray[np.int32]) -> int:
        """Keep the tentative rows on the path of ``committed``, drop the others.

        Args:
            committed: int32 [c], the tokens just appended to the sequence.
            history: all committed tokens, ``committed`` included.

        Returns:
            How many rows were kept.
        """
        path: list[int] = []
        if not self.partial and self.length == len(history) - len(committed):
            path = self.tentative.follow(committed.tolist())
        moves = [
            (self.length + node, self.length + place)
            for place, node in enumerate(path)
            if node != place
        ]
        if moves:
            source, target = zip(*moves, strict=True)
            self.backend.copy(self._physical(source), self._physical(target))
        self._drop()
        # The newest token stays pending even if its row is there: its logits are needed next.
        self.length = min(self.length + len(path), len(history) - 1)
        self._publish(history)
        return len(path)

    def fork(self) -> Cache:
        """A copy that shares every page; a page is duplicated when one of the two writes to it."""
        twin = Cache(self.backend, self.pool, self._keys[0], self.scratch, self.capacity)
        twin.filled = None if self.filled is None else self.filled.copy()
        twin.pages = [self.pool.share(page) for page in self.pages]
        twin.length, twin.reusable, twin._keys = self.length, self.reusable, list(self._keys)
        twin.layers = self.layers
        return twin

    def release(self) -> None:
        """Give every page back."""
        for page in self.pages:
            self.pool.release(page)
        self.pages.clear()
        self._drop()
        self.length, self.filled = 0, None

    def _check_tokens(
        self, forward: Forward, tokens: NDArray[np.int32], history: NDArray[np.int32]
    ) -> None:
        given = forward.embeddings is not None or forward.resume is not None
        own = forward.store is Store.COMMIT and not given
        vocabulary = self.backend.config.vocab_size
        # The sequence's own tokens were checked when they became its own.
        for ids in (_NONE if own else tokens, forward.tree.tokens):
            if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
                raise DecoderError(f"token ids must be from 0 to {vocabulary - 1}")
        if self.layers is not None and not self.layers.issuperset(self._attending(forward)):
            raise DecoderError(
                f"committed rows hold keys and values of layers {sorted(self.layers)} only; the "
                "attention of the others cannot run"
            )
        if forward.store is Store.COMMIT and len(tokens):
            if len(self.tentative):
                raise DecoderError("tokens cannot be committed behind tentative rows")
            if self.filled is not None:
                raise DecoderError("the rows of a canvas are stored with Overwrite only")
            expected = history[self.length : self.length + len(tokens)]
            if len(expected) != len(tokens) or (own and not (expected == tokens).all()):
                raise DecoderError(
                    f"rows at {self.length} must be the sequence's own tokens "
                    f"{expected.tolist()}, not {tokens.tolist()}"
                )

    def _attending(self, forward: Forward) -> set[int]:
        """The layers that read and write keys and values."""
        layers = forward.layers
        return set(range(self.backend.config.layers)) if layers is None else attending(layers)

    def _visible(self, forward: Forward) -> NDArray[np.int32] | None:
        """The cached slots that the rows see, if not all; rows that replace slots see the new."""
        if forward.visible is not None and not self._holds(np.asarray(forward.visible)):
            raise DecoderError("visible names slots in which no keys and values were stored")
        if not isinstance(forward.store, Overwrite):
            return forward.visible
        cached = np.arange(self.length, dtype=np.int32)
        seen = cached if forward.visible is None else forward.visible
        replaced = np.zeros(self.capacity + 1, bool)  # -1, for rows that replace none, is the last.
        replaced[forward.store.slots] = True
        return seen[~replaced[seen]]

    def _holds(self, slots: NDArray[np.integer]) -> bool:
        if len(slots) == 0:
            return True
        low, high = int(slots.min()), int(slots.max())
        if self.filled is None or high >= self.capacity:
            return low >= 0 and high < self.length
        return low >= 0 and bool((self.filled[slots] | (slots < self.length)).all())

    def _slots(self, store: Store | Overwrite, start: int, count: int) -> NDArray[np.int32]:
        if isinstance(store, Overwrite):
            slots = np.asarray(store.slots, np.int32)
            end = start or self.capacity  # A canvas has no committed rows.
            if len(slots) and not (slots.min() >= -1 and slots.max() < end):
                raise DecoderError(f"only the slots 0 to {end - 1} can be overwritten")
            return slots
        if store is Store.COMMIT:
            return np.arange(start, start + count, dtype=np.int32)
        return np.full(count, -1, np.int32)

    def _extended(self, forward: Forward) -> TokenTree:
        """The tentative rows, those of ``forward`` included."""
        under, tree = forward.under, forward.tree
        if under is not None:
            unknown = (under < ROOT) | (under >= len(self.tentative) + np.arange(len(tree)))
            if (unknown & (tree.parents == ROOT)).any():
                raise DecoderError(f"tree rows hang under unknown tentative rows {under.tolist()}")
        return self.tentative.extend(tree, under)

    def _drop(self) -> None:
        """Forget the tentative rows."""
        self.tentative, self.partial = EMPTY, False

    def _mask(
        self, forward: Forward, at: NDArray[np.int32], tentative: TokenTree
    ) -> NDArray[np.bool_] | None:
        """bool [K + M, T + K + M]; None where the span's causal default says the same."""
        tree, attend, tail = forward.tree, forward.attend, len(self.tentative)
        count, drafted = len(at), len(tree)
        causal = attend is Attend.CAUSAL
        if causal and (drafted == 0 or (tree.is_chain and tail == 0)):
            return None
        rows = count + drafted
        width = tail if drafted else 0
        mask = np.zeros((rows, width + rows), bool)
        mask[:count, width : width + count] = _among(attend, at)
        if drafted:
            mask[count:, width : width + count] = True
            seen = tentative.visibility[tail:]
            mask[count:, :tail], mask[count:, width + count :] = seen[:, :tail], seen[:, tail:]
        return mask

    def _own(self, slots: NDArray[np.int32]) -> None:
        """Have a page of one's own under each slot that will be written (-1: none)."""
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

    def _publish(self, history: NDArray[np.int32]) -> None:
        while self.reusable and len(self._keys) * PAGE <= min(self.length, len(history)):
            index = len(self._keys) - 1
            self._keys.append(next_key(self._keys[-1], history[index * PAGE : (index + 1) * PAGE]))
            self.pool.publish(self.pages[index], self._keys[-1])

    def _physical(self, slots: tuple[int, ...]) -> NDArray[np.int64]:
        return np.array([self.pages[s // PAGE] * PAGE + s % PAGE for s in slots], np.int64)


_NONE = np.empty(0, np.int32)


def _among(
    attend: Attend | BlockCausal | NDArray[np.bool_], positions: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """bool [K, K]: which of the forward's own rows, at ``positions`` [K], see one another."""
    count = len(positions)
    if isinstance(attend, BlockCausal):
        blocks = positions // attend.size
        return blocks[:, None] >= blocks[None, :]
    if isinstance(attend, np.ndarray):
        if attend.shape != (count, count) or attend.dtype != np.bool_:
            raise DecoderError(f"attend must be bool [{count}, {count}], not {attend.shape}")
        return attend
    return np.tri(count, dtype=bool) if attend is Attend.CAUSAL else np.ones((count, count), bool)
