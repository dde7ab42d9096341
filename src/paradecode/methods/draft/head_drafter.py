"""Base class of drafters with a draft head, which reads the target's hidden states."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply, Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.multi_step import StepsMade
from paradecode.core.network import Array
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.contracts import Proposal
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.parts import choice, dataclass_transform, local_path, parameter

PAGE = 16
"""Number of rows in one page of stored hidden states, the same as in a page of keys and values."""

MOST_BYTES = 24 << 20
"""The most bytes of hidden states that one tenant stores for one set of layers.

This is enough for 3,600 tokens if a head reads three layers of a 135M model, or 1,300 with a 1.5B
model. All tenants together have 128 MB for hidden states and for what drafters learn.
"""


class PastStates:
    """Stores pages of the target's hidden states, each under a hash of all tokens up to its end.

    A hidden state depends only on these tokens, so every request of the tenant may use it.

    The store is needed because the target does not compute a prompt again if its keys and values
    come from the prefix cache. It gives no hidden states of those rows, so a head could not read
    that part of the text.

    A text is useful only if its first page and all following ones are stored. The end of a text is
    therefore dropped before its beginning, and the text that was unused longest before other texts.
    """

    saves_work: ClassVar[bool] = True
    """True because states can be recomputed: they are dropped before learned data."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        self._pages: OrderedDict[bytes, Array] = OrderedDict()

    def of(self, tokens: NDArray[np.int32]) -> Array | None:
        """Return the hidden states of all n tokens, float32 [n, F], or None if some are not stored.

        n is a multiple of :data:`PAGE`.
        """
        keys = [b""]
        for start in range(0, len(tokens), PAGE):
            keys.append(key_of(keys[-1], tokens[start : start + PAGE]))
            if keys[-1] not in self._pages:
                return None
        self._touch(keys[1:])
        return np.concatenate([self._pages[key] for key in keys[1:]]) if keys[1:] else None

    def keep(self, keys: Sequence[bytes], states: Array) -> None:
        """Store the newest pages of a text.

        Args:
            keys: keys of all pages of the text, from the first.
            states: [n * PAGE, F], states of the last n pages.
        """
        pages = states.reshape(-1, PAGE, states.shape[1])
        for key, page in zip(keys[len(keys) - len(pages) :], pages):
            if key not in self._pages:
                self._pages[key] = page.copy()
                self.nbytes += page.nbytes
        self._touch(keys)
        while self.nbytes > self.most_bytes:
            self.nbytes -= self._pages.popitem(last=False)[1].nbytes

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Make a text's pages the last used ones, and its first page the very last."""
        for key in reversed(keys):
            if key in self._pages:
                self._pages.move_to_end(key)


class TextStates:
    """Collects the hidden states of a request's growing text, and stores full pages in ``past``."""

    def __init__(self, past: PastStates) -> None:
        self.past = past
        self._keys: list[bytes] = []
        self._tokens = np.zeros(0, np.int32)
        self._states: list[Array] = []

    def extend(self, tokens: NDArray[np.integer], states: Array) -> None:
        """Append rows: their tokens [n], and the target's hidden states of these tokens [n, F]."""
        self._tokens = np.append(self._tokens, tokens).astype(np.int32)
        self._states.append(states)
        if len(self._tokens) < PAGE:
            return
        rows, whole = np.concatenate(self._states), len(self._tokens) // PAGE * PAGE
        for start in range(0, whole, PAGE):
            before = self._keys[-1] if self._keys else b""
            self._keys.append(key_of(before, self._tokens[start : start + PAGE]))
        self.past.keep(self._keys, rows[:whole])
        self._tokens, self._states = self._tokens[whole:], [rows[whole:].copy()]


def key_of(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
    """Return the key of a page with ``tokens`` that comes after the page with key ``previous``."""
    return hashlib.blake2b(previous + tokens.tobytes(), digest_size=16).digest()


Class = TypeVar("Class", bound=type[Any])


@dataclass_transform(field_specifiers=(field,))
def head_method(name: str, source: str, *kinds: str, **about: Any) -> Callable[[Class], Class]:
    """Make the decorated drafter class, which has a trained head, the method ``name``.

    Args:
        source: the thing that must be trained or loaded first, for error messages.
        kinds: kinds of heads that the method runs; by default only the kind ``name``.
        about: further arguments of :func:`paradecode.methods.draft.loop.drafter`.
    """

    def add(cls: Class) -> Class:
        cls.source, cls.kinds = source, kinds or (name,)
        return drafter(name, training=source, **about)(cls)

    return add


@dataclass(kw_only=True)
class HeadDrafter(ModelDrafter):
    """Drafts with a head that reads the target's hidden states; see :mod:`paradecode.core.head`.

    The tree grows where the head's own probabilities are highest. The estimates are corrected by
    counted acceptances, and then the budget cuts the tree. A level is drafted only if some node is
    so likely to be reached that the level is worth its seconds. With a temperature, and a verifier
    that allows it, candidates are ranked with the random numbers with which the target will sample.

    Attributes:
        source: the thing that must be trained or loaded first, for error messages.
        kinds: kinds of heads that the method runs.
    """

    needs = Needs(noise=True, all_rows=True, heads=True, rests=True)
    source: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    head: str = local_path("folder of the head, or a GGUF draft")
    width: int = parameter(4, 1, 16, "candidates of each node, and of nodes that a level expands")
    depth: int = parameter(6, 1, 16, "levels of a draft; the most, or exactly in one forward")
    vocabulary: int = parameter(0, 0, 1 << 20, "number of lowest token ids it may draft; 0 for all")
    dtype: str = choice("q8", ("q8", "q4"), "type of the head's matrices in the native core")
    _memory: Memory = field(default_factory=Memory, init=False, repr=False)
    _rows: list[tuple[Array, NDArray[np.int64]]] = field(
        default_factory=list, init=False, repr=False
    )
    _start: int = field(default=0, init=False, repr=False)
    _open: Head | None = field(default=None, init=False, repr=False)
    _text: TextStates | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.head:
            raise InvalidInput("head", "", f"write head=FOLDER, the folder of {self.source}")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        head = self._head(seq)
        self._look(seq, head)
        if not self._rows:
            return EMPTY
        root = np.array([ROOT], np.int32)
        seconds = head.pace.behind(self._late(seq))
        if len(self.offer.budget.expand(seq, EMPTY, root, lambda rows: seconds)) == 0:
            return EMPTY
        tree = yield from self._guessed(seq, head, limit, min(limit, self.depth))
        self._calibration = seq.shared(f"head {self.head}", Calibration)
        self._raw = tree.estimates.tolist()
        later = np.array([tree.children(p)[0] != n for n, p in enumerate(tree.parents)], bool)
        self._tree = replace(
            tree, estimates=self._calibration.of(tree.estimates, later).astype(np.float32)
        )
        return self._tree

    def _guessed(
        self, seq: TokenSequence, head: Head, count: int, depth: int, first: int = 0
    ) -> Proposal:
        """Run the head on the rows that it has not read; return a tree of at most ``count`` nodes.

        Args:
            first: number of draft tokens that precede the head's first level.
        """
        late, asked = self._late(seq), self._asked(seq, head, count, depth, first)
        tree: TokenTree = yield Apply(head, asked)
        # If the head has read many rows, its speed is measured now.
        reading = head.pace.behind(len(asked.tokens)) - head.pace.behind(late)
        self.offer.budget.charge(reading, sunk=True)
        return tree

    def _late(self, seq: TokenSequence) -> int:
        """Return the number of output rows that the head has not read yet.

        Rows of the prompt do not count, because every draft needs them.
        """
        waiting = sum(len(tokens) for _, tokens in self._rows)
        return min(waiting, len(seq.tokens) - seq.prompt_length)

    def _asked(
        self, seq: TokenSequence, head: Head, count: int, depth: int, first: int
    ) -> HeadDraft:
        """Return the request to the head, with the rows that it has not read yet."""
        features, tokens = (np.concatenate(parts) for parts in zip(*self._rows))
        noise = self.offer.noise and seq.sampler.warp.temperature > 0
        at, self._start, self._rows = self._start, self._start + len(tokens), []
        return HeadDraft(
            self._memory, features, tokens, at, count, self.width, depth,
            least=0.0 if head.at_once else self.offer.budget.least(seq, head.pace.level),
            warp=seq.sampler.warp,
            keys=tuple(map(seq.sampler.noise_key, range(first, first + depth) if noise else ())),
        )  # fmt: skip

    def wait(self, seq: TokenSequence) -> None:
        head = self._head(seq)
        if len(seq.tokens) == seq.prompt_length:  # A head needs the prompt's states too.
            self._look(seq, head)

    def _look(self, seq: TokenSequence, head: Head) -> None:
        """Ask the target for hidden states of the coming rows, if drafts may be worth it."""
        if not self.hidden and self.offer.budget.wants_states(seq, head.pace.draft):
            self.hidden = head.taps

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        super().observe(seq, tree, reply, verdict)
        if self.hidden and all(layer in reply.hidden for layer in self.hidden):
            self._take(seq, tree, reply, verdict)

    def _take(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Store the hidden states of the committed rows, each with the token that follows it."""
        states = [reply.hidden[layer] for layer in self.hidden]
        known = len(states[0]) - len(tree)  # Rows of the text come before those of the tree.
        rows = [*range(known - 1), *(known - 1 + row for row in verdict.rows)]
        first = len(seq.tokens) - known
        text = np.array([*seq.tokens[first:], *verdict.tokens], np.int64)
        self._keep(seq, first, np.concatenate([each[rows] for each in states], axis=1), text)

    def rested(self, seq: TokenSequence, made: StepsMade) -> None:
        super().rested(seq, made)
        if self.hidden and all(layer in made.hidden for layer in self.hidden):
            features = np.concatenate([made.hidden[layer] for layer in self.hidden], axis=1)
            first = len(seq.tokens) - 1 - len(features)
            self._keep(seq, first, features, seq.tokens[first:].astype(np.int64))

    def _keep(
        self, seq: TokenSequence, first: int, features: Array, text: NDArray[np.int64]
    ) -> None:
        """Store the hidden states of all but the last token of ``text``.

        Args:
            first: position of the first token of ``text`` in the sequence.
        """
        if not self._rows and self._memory.length == 0:
            self._begin(seq, first)
        if self._text is not None:
            self._text.extend(text[:-1], features)
        self._rows.append((features, text[1:]))

    def _begin(self, seq: TokenSequence, first: int) -> None:
        """Begin a request in which the target gives hidden states from position ``first`` on.

        States of earlier positions come from the store if it has all of them.
        """
        past = seq.shared(f"states {self.hidden}", PastStates)
        before = past.of(seq.tokens[:first])
        self._start = first if before is None else 0
        self._memory.recent = seq.tokens[self._start : self._start + 1].astype(np.int64)
        self._text = None if first > 0 and before is None else TextStates(past)
        if before is not None and self._text is not None:
            self._text.extend(seq.tokens[:first], before)
            self._rows.append((before, seq.tokens[1 : first + 1].astype(np.int64)))

    def _head(self, seq: TokenSequence) -> Head:
        if self._open is None:
            self._open = seq.head(self.head, self.vocabulary, self.dtype)
            if self._open.kind not in self.kinds:
                fix = f"this method runs {' or '.join(self.kinds)}: use the head's own method"
                raise InvalidInput("head", self._open.kind, fix)
        return self._open
