"""Draft sources (a model, or layers of the target), and the rows from which a draft tree grows.

A row is one position in a forward pass: its token goes in, keys and values are cached, logits come
out. Rows of draft tokens are tentative: the next verification keeps or drops them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, TARGET, Forward, ModelFacts, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Layers, halves, work
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.contracts import LAST, DraftRows, Nodes, Seconds

NO_TOKENS = np.empty(0, np.int32)
NO_STATES = np.empty((0, 0), np.float32)
Path = tuple[int, ...]
Looking = Generator[Forward, Reply, DraftRows]
"""A generator that yields forward passes and returns their results at the requested nodes."""


@dataclass
class ExitRows:
    """Stores the results of a draft by the target's first ``exit`` layers (LayerSkip, DEL).

    The keys and values of the draft's rows are the target's own, and the exit's output is the next
    layer's input. A verification therefore runs only the layers after the exit. Nodes without a row
    in the draft also run through the layers before the exit.

    Attributes:
        exit, total: number of layers before the exit, and of the whole model.
        scratch: the most tentative rows after the committed tokens.
        hidden: layers up to the exit whose outputs are stored, always including the exit's.
    """

    exit: int
    total: int
    scratch: int
    hidden: tuple[int, ...]
    _rows: TokenTree = field(default=EMPTY, init=False)
    _states: dict[int, list[NDArray[np.float32]]] = field(default_factory=dict, init=False)

    def add(self, forward: Forward, reply: Reply) -> None:
        """Store the rows of one of the draft's forward passes."""
        self._rows = self._rows.extend(forward.tree, forward.under)
        for layer in self.hidden:
            self._states.setdefault(layer, []).append(reply.hidden[layer])

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        """Run a verification, but skip the layers that the draft has run already."""
        before = [at for at in forward.hidden if at % self.total < self.exit]
        if not {at % self.total for at in before} <= set(self.hidden):
            return (yield forward)  # Another drafter of a fusion needs other states.
        pending = len(forward.tokens)
        last = np.full(len(forward.tree), pending - 1, np.int32)
        rows = TokenTree.chain(forward.tokens).extend(forward.tree, last)
        place = rows.locate(self._rows.child)
        missing = np.array([row for row in range(len(rows)) if row not in place], np.int32)
        if len(self._rows) + len(missing) - pending > self.scratch:
            return (yield forward)
        if len(missing):
            yield from self._run(rows, missing, place)
        order = [place[row] for row in range(len(rows))]
        behind = tuple(at for at in forward.hidden if at not in before)
        layers = tuple(range(self.exit, self.total))
        reply = yield replace(forward, layers=layers, hidden=behind)
        kept = {at: np.concatenate(self._states[at % self.total])[order] for at in before}
        return Reply(reply.logits, {**reply.hidden, **kept})

    def _run(
        self, rows: TokenTree, missing: NDArray[np.int32], place: dict[int, int]
    ) -> Generator[Forward, Reply, None]:
        """Run the missing rows through the layers before the exit, and store them."""
        parents = rows.parents[missing]
        inside = np.isin(parents, missing)
        tree = TokenTree(
            rows.tokens[missing],
            np.where(inside, np.searchsorted(missing, parents), ROOT).astype(np.int32),
        )
        under = [ROOT if within else place[int(p)] for p, within in zip(parents, inside)]
        forward = Forward(
            NO_TOKENS,
            tree=tree,
            under=np.array(under, np.int32),
            layers=tuple(range(self.exit)),
            logits=NO_TOKENS,
            hidden=self.hidden,
        )
        place |= {row: len(self._rows) + n for n, row in enumerate(missing.tolist())}
        self.add(forward, (yield forward))


@dataclass
class PathRows:
    """The tentative rows of one model after the committed tokens, one for each path that was run.

    A path is the draft tokens after the last committed token, in the model's own ids; the path of
    the committed token is empty. An object must not be used after a commit.

    Attributes:
        layers: indices of the layers that run, or None for all. With layers given, the rows are for
            drafting only: the text's rows are tentative too, and a verification drops them.
        visible: cached slots that the rows attend to; None means all.
        slots: index of each path among the tentative rows; -1 for a committed token.
        taken: number of tentative rows.
    """

    seq: TokenSequence
    model: str
    layers: Layers | None = None
    visible: NDArray[np.int32] | None = None
    slots: dict[Path, int] = field(default_factory=dict)
    taken: int = 0

    def forward(
        self, paths: Sequence[Path], *, beside: Path = (), hidden: tuple[int, ...] = (),
        logits: bool = True, streams: NDArray[np.float32] = NO_STATES,
    ) -> Forward:  # fmt: skip
        """Return the forward that runs the missing rows of ``beside`` and ``paths``, in this order.

        Its logits, if wanted, predict the token after each of ``paths``. The caller must run the
        forward pass.

        Args:
            streams: float32 [S, hidden size], trained prompt tokens that also run after each path;
                their logits come after the logits of the path. Only as many run as there is room
                for.
        """
        text, lead, first = NO_TOKENS, 0, self.taken
        if not self.slots:
            text = self.seq.pending_for(self.model)
            lead = 0 if self.layers is None else len(text)
            self.slots[()], self.taken = lead - 1, lead
        tokens, under = text[:lead].tolist(), [*range(ROOT, lead - 1)]
        for path in (beside, *paths):
            known = len(path)
            while path[:known] not in self.slots:
                known -= 1
            for end in range(known, len(path)):
                tokens.append(path[end])
                under.append(self.slots[path[:end]])
                self.slots[path[: end + 1]] = self.taken
                self.taken += 1
        given, said = self._streams(paths, streams), list[int]()
        for path in paths:
            said.append(self.slots[path])
            for _ in range(len(given) // len(paths)):
                tokens.append(-1)
                under.append(said[-1])
                said.append(self.taken)
                self.taken += 1
        above, text = np.array(under, np.int32), text[lead:]
        tree = TokenTree(np.array(tokens, np.int32), np.maximum(above - first, ROOT))
        rows = [len(text) + slot - first for slot in said] if logits else []
        # With ``logits`` None, a prompt may be run in pieces.
        usual = rows == [*range(max(len(text) - 1, 0), len(text) + len(tree))]
        wanted = None if usual else np.array(rows, np.int32)
        return Forward(
            text, tree=tree, under=above, layers=self.layers, visible=self.visible, logits=wanted,
            hidden=hidden, given=given if len(given) else None, model=self.model,
        )  # fmt: skip

    def _streams(self, paths: Sequence[Path], streams: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the inputs of the prompt rows after ``paths``, the same number after each path."""
        room = self.seq.room_for(self.model) - max(map(len, paths))
        each = max(min((self.seq.scratch - self.taken) // len(paths), room), 0)
        return np.tile(streams[:each], (len(paths), 1))


def streams_of(seq: TokenSequence, folder: str) -> NDArray[np.float32]:
    """Return the draft model's prompt tokens, float32 [S, hidden size]; none without a folder.

    Raises:
        InvalidInput, InvalidModel: if the folder has no prompt tokens, or is for another model.
    """
    if not folder:
        return NO_STATES
    found = seq.head(folder, model=DRAFT).prompts
    if found is None:
        fix = "name the folder of `paradecode train head ppd`, trained for the draft model"
        raise InvalidInput("streams", folder, fix)
    return found


class LevelRows:
    """The rows from which one tree grows, level by level; each draft has a new object.

    Attributes:
        model: name of the model that drafts.
        depth: the most levels of the tree; 0 if nothing can be drafted now.
        exit: the rows from which the verification continues, if the draft has run some of its
            layers.
        reading: seconds that the first :meth:`look` takes longer because it reads the prompt.
    """

    model: str = DRAFT
    depth: int = 0
    reading: float = 0.0
    exit: ExitRows | None = None

    @property
    def room(self) -> int:
        """The number of further nodes that may have a row; 1 for a chain."""
        return 1

    def seconds(self, rows: int) -> float:
        """Return the seconds of the next :meth:`look`; 0 if they were not measured."""
        raise NotImplementedError

    def look(self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool) -> Looking:
        """Compute the logits after each of ``leaves``; the first call has [ROOT].

        Args:
            own: the tokens of ``tree`` in the draft model's ids.
            states: True if hidden states are wanted besides the logits.
        """
        raise NotImplementedError


class DraftSource(Protocol):
    """Interface of a draft source: a model, or layers of the target."""

    def rows(self, seq: TokenSequence, limit: int) -> LevelRows:
        """Return the rows for a draft of at most ``limit`` nodes."""


def share_of(facts: ModelFacts, layers: Layers, logits: bool = True) -> float:
    """Return the work of these layers, and of the LM head if wanted, as a share of a forward."""
    head = facts.head_layers
    return (work(layers) + head * logits) / (facts.layers + head)


@dataclass(frozen=True)
class Source:
    """A model, or some of its layers, that drafts with one forward pass for each level.

    Attributes:
        model: name of the model.
        layers: indices of the layers that run; None means all.
        hidden: layers whose outputs the verification must return.
        logits: True if the rows go through the LM head.
        taps: layers whose concatenated outputs are the hidden states that :meth:`LevelRows.look`
            returns; empty means the last layer that runs.
    """

    model: str = TARGET
    layers: Layers | None = None
    hidden: tuple[int, ...] = ()
    logits: bool = True
    taps: tuple[int, ...] = ()

    def rows(self, seq: TokenSequence, limit: int) -> LevelRows:
        return TreeRows(self, seq, limit)

    def seconds(self, seq: TokenSequence) -> Seconds:
        share = 1.0
        if self.layers is not None:
            share = share_of(seq.about(self.model), self.layers, self.logits)
        if self.model == TARGET:
            return lambda rows: share * (seq.step_seconds(rows) or 0.0)
        return lambda rows: share * (seq.step_seconds(rows, self.model) or 0.0)

    def exit(self, seq: TokenSequence) -> ExitRows | None:
        """Return an early exit, so that the verification continues after the layers that drafted.

        The verification does not compute these layers again. The result is None if the drafting
        layers are not the first layers of the model. It is also None in a batch, because all
        requests of a batch share one forward pass of all layers.
        """
        layers = self.layers
        if not layers or seq.neighbours or layers != tuple(range(len(layers))):
            return None
        total = seq.about(self.model).layers
        kept = {self.last, *self.taps, *(at for at in self.hidden if at % total < len(layers))}
        return ExitRows(len(layers), total, seq.scratch, tuple(kept))

    @property
    def last(self) -> int:
        """The index of the last layer that runs."""
        return LAST if self.layers is None else halves(self.layers[-1])[0]

    def room(self, seq: TokenSequence) -> int:
        """Return the most levels that a tree can have."""
        return seq.room if self.model == TARGET else seq.room_for(self.model)


class TreeRows(LevelRows):
    """The rows of a tree: one forward for the root, then one for the new nodes of each level."""

    def __init__(self, source: Source, seq: TokenSequence, limit: int) -> None:
        self._source, self._limit = source, limit
        self.model, self._seconds = source.model, source.seconds(seq)
        # The time of prompt rows counts as ``reading``; output rows are charged to the draft.
        waiting = len(seq.pending_for(source.model))
        prompt = source.layers is not None and waiting > limit
        self.depth = 0 if prompt else min(limit, source.room(seq))
        self._late = min(waiting, len(seq.tokens) - seq.prompt_length)
        if source.layers is None and waiting > self._late:
            self.reading = self._seconds(waiting) - self._seconds(max(self._late, 1))
        self.exit = source.exit(seq)
        self._rows = PathRows(seq, source.model, source.layers)

    @property
    def room(self) -> int:
        # Memory is reserved for ``limit`` draft rows.
        return max(self._limit - self._rows.taken, 0)

    def seconds(self, rows: int) -> float:
        return self._seconds(rows if self._rows.slots else max(rows, self._late))

    def look(self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool) -> Looking:
        source = self._source
        taps = source.taps or (source.last,)
        hidden = taps if states else ()
        if self.exit is not None:
            hidden = self.exit.hidden
        paths = [tuple(own[node] for node in tree.path(leaf)) for leaf in leaves.tolist()]
        forward = self._rows.forward(paths, hidden=hidden, logits=source.logits)
        reply = yield forward
        if self.exit is not None:
            self.exit.add(forward, reply)
        if not states:
            return DraftRows(source.model, reply.logits, NO_STATES)
        # In the root's forward, the root's row is the last one.
        seen = np.concatenate([reply.hidden[tap][-len(leaves) :] for tap in taps], axis=1)
        return DraftRows(source.model, reply.logits, seen)
