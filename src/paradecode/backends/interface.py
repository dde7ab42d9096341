"""The interface of a backend, which runs forwards for the engine. It never sees a method.

Keys and values live in pages of ``PAGE`` slots, shared by all layers of a model: slot s of a
sequence is row ``s % PAGE`` of page ``pages[s // PAGE]``. Layers with a sliding window may have a
page table of their own, one for each window, which lacks the pages that the window has passed.
Layers with a state have pages of records and slots of states (:class:`StatePages`). The engine owns
the page numbers; the backend owns the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.run import run_head
from paradecode.core.checks import is_whole
from paradecode.core.decoder import Denoise
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head, HeadDraft
from paradecode.core.layers import Layers, halves, is_layer
from paradecode.core.lineage import chain, lineage
from paradecode.core.logits import Logits, Warp
from paradecode.core.multi_step import MultiStep
from paradecode.core.network import Array, Item, Network
from paradecode.core.tree import TokenTree
from paradecode.models.config import ModelConfig

PAGE = 16
"""Slots of a page. Larger pages share less between requests, and have smaller page tables."""
STATES = -2
"""In place of a window: the records of layers with a state."""
Progress = Callable[[int, int], None]
"""Called with the amount that is done and with the whole amount."""


class WindowPages(NamedTuple):
    """The page table of the layers with one sliding window.

    Attributes:
        first: index of the first page that is there; the ones before it are gone.
        pages: int32 [P], the pages from ``first`` on.
    """

    first: int
    pages: NDArray[np.int32]


class StatePages(NamedTuple):
    """Where the layers with a state of one sequence read and write.

    The state at the start of page p is the one behind the first ``p * PAGE`` rows. A row at
    position s leaves its record in row ``s' % PAGE`` of page ``s' // PAGE``, where s' is its slot.

    Attributes:
        records: the pages of records; rows of a page -1, or of one that is not there, leave none.
        base: the page whose first state is given; all cached rows from there on have records.
        state: the slot of that state, or -1 for the state before the first row (``base`` 0).
        writes: pairs of a page and a state slot: the state at the start of that page is stored
            there by the layers that run. The page comes after ``base``, and its first state
            depends on the context and on leading rows of the span only, each after the one before.
    """

    records: WindowPages
    base: int
    state: int
    writes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Span:
    """The rows of one sequence in a packed forward.

    Row k attends to the cached slots ``visible`` (or ``range(context)``), to the cached slots
    ``tail[t]`` with ``mask[k, t]``, and to the new rows j with ``mask[k, len(tail) + j]``. The
    order of summation depends on positions only, never on slots or on other rows.

    Attributes:
        pages: int32 [P], the sequence's page table.
        tokens: int32 [K]; ignored for rows with ``embeddings`` or ``resume``.
        positions: int32 [K], rotary positions.
        slots: int32 [K], where each row's key and value are stored; -1 stores nothing (the rows
            still see one another). All others are distinct, and none is a cached slot that the rows
            see.
        context: number of leading slots that every row sees, at positions 0 .. context - 1.
        visible: int32 [V] or None; replaces ``range(context)`` by an ordered list of slots.
        tail: int32 [T], further cached slots; ``mask`` says which rows see them.
        tail_positions: int32 [T], their positions.
        mask: bool [K, T + K], or None for causal: row k sees all of ``tail`` and rows 0..k.
        logits: int32 [R], the rows that go through the final norm and the LM head.
        hidden: layers whose outputs are returned; they must run. The output of a layer is the
            residual stream after its last half that runs.
        layers: layers, or halves of layers, to run, in order; None for all. A layer whose attention
            does not run neither reads nor stores keys and values.
        embeddings: float32 [G, D], the input of the last G rows, or None.
        resume: float32 [K, D] or None; enters the first of ``layers`` in place of the embedding.
        attention: int32 [A] or None; rows whose attention weights are returned, for every layer
            whose attention runs. Only backends with :func:`gives_attention` accept it, and
            ``visible`` must ascend then.
        denoise: marks the rows as a canvas of a model with ``ModelConfig.canvas_length``.
        windows: window -> the page table of its layers; ``pages`` serves the windows that are not
            named.
        states: what the layers with a state read and write. None in a model without such layers, or
            in a span without cached rows, whose rows leave no records.
    """

    pages: NDArray[np.int32]
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    context: int
    logits: NDArray[np.int32]
    visible: NDArray[np.int32] | None = None
    tail: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    tail_positions: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    mask: NDArray[np.bool_] | None = None
    hidden: tuple[int, ...] = ()
    layers: Layers | None = None
    embeddings: NDArray[np.float32] | None = None
    resume: NDArray[np.float32] | None = None
    attention: NDArray[np.int32] | None = None
    denoise: Denoise | None = None
    windows: Mapping[int, WindowPages] = field(default_factory=dict)
    states: StatePages | None = None

    def paths(self) -> list[NDArray[np.int64]]:
        """Return each row's ancestors from the first state's page on (see :func:`lineage`)."""
        start = 0 if self.states is None else self.states.base * PAGE
        return lineage(start, self.context, self.tail_positions, self.positions, self.mask)

    def table(self, window: int) -> WindowPages:
        """Return the page table of the layers with a window (0: without one)."""
        return self.windows.get(window) or WindowPages(0, self.pages)

    def physical(self, window: int, slots: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where the layers with a window keep slots: page * PAGE + row, int64.

        Raises:
            InvalidInput: the page of a slot is gone.
        """
        first, pages = self.table(window)
        places = slots.astype(np.int64)
        if len(places) and places.min() < first * PAGE:
            raise _gone(window, first, int(places.min()))
        return pages.astype(np.int64)[places // PAGE - first] * PAGE + places % PAGE


@dataclass(frozen=True, eq=False)
class SpanResult:
    """The results of a span.

    The S tokens of ``attention`` are the cached slots of ``visible`` or ``context``, followed by
    ``tail`` and the new rows, sorted by position. A token that a row does not see has weight 0.

    Attributes:
        logits: logits of the requested rows.
        hidden: layer -> float32 [K, D]; float64 if the model computes in float64. ``Span.resume``
            accepts these states.
        attention: layer -> float32 [A, heads, S], the attention weights over S tokens, which sum to
            1.
    """

    logits: Logits
    hidden: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    attention: dict[int, NDArray[np.float32]] = field(default_factory=dict)


class RunsNetworks(Protocol):
    """An object that runs small networks: a backend, or a separate place for draft heads."""

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        """Run a network over several items; return float32 [rows of the item, width] for each.

        Raises:
            InvalidInput: an item lacks an input of the network.
        """

    def close(self) -> None:
        """Free memory and threads; further calls are errors."""


class Backend(RunsNetworks, Protocol):
    """One loaded model on one machine."""

    name: str
    config: ModelConfig

    def reserve(self, pages: int) -> None:
        """Allocate memory for pages 0 .. pages - 1, all layers. Called once, before any forward.

        Each window's layers have so many pages. Memory is taken as pages are written, if possible.
        """

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        """Run one packed forward. All spans have the same ``layers``.

        Raises:
            InvalidInput: a size, index or token id is out of range; nothing was stored then.
        """

    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        """Copy K/V rows between physical slots (page * PAGE + row).

        All sources are read before a target is written.

        Args:
            window: only in the layers with this window; None means in every layer. ``STATES`` means
                the records of layers with a state, which None does not mean.
        """


@runtime_checkable
class KeepsStates(Protocol):
    """A backend that runs layers with a state."""

    def reserve_states(self, records: int, states: int) -> None:
        """Allocate pages of records and slots of states. Called once, before any forward.

        Memory is taken as it is written, if possible.
        """


class CommittedStep(NamedTuple):
    """The result of one of several steps for a sequence.

    Attributes:
        drafted: int32 [M], the chain that was verified; None for no draft.
        estimates: float32 [M], acceptance estimates of its tokens.
        tokens: the accepted tokens of the draft, and the token that follows them.
        logprobs: log-probability of each token, before the warp; empty if they were not requested.
        ended: seconds from the beginning of the call to the end of this step.
        forward: seconds of the forward, which all sequences share.
        hidden: float32 [tokens, requested layers * hidden size], the states from which each token
            was predicted; None if no layer was requested.
    """

    drafted: NDArray[np.int32] | None
    estimates: NDArray[np.float32] | None
    tokens: list[int]
    logprobs: list[float]
    ended: float
    forward: float
    hidden: NDArray[np.float32] | None = None


class Curve(Protocol):
    """Seconds of a forward, ``[contexts][rows]``; contexts and rows ascend."""

    @property
    def rows(self) -> tuple[int, ...]: ...
    @property
    def contexts(self) -> tuple[int, ...]: ...
    @property
    def seconds(self) -> tuple[tuple[float, ...], ...]: ...


class StepsInput(NamedTuple):
    """Costs and limits for a run of several steps.

    Attributes:
        curve: seconds of a forward; None if it was not measured.
        overhead: seconds outside of the forward: for a step, for each of its sequences, and for a
            draft.
        sequences, rows: numbers of sequences and rows in the previous forward.
        spare: for each group of sequences, the draft rows that a step may have.
        groups: for each sequence, its index into ``spare``.
        limit: seconds after which no further step begins.
    """

    curve: Curve | None
    overhead: tuple[float, float, float]
    sequences: int
    rows: int
    spare: Sequence[int]
    groups: Sequence[int]
    limit: float


class Stepper(Protocol):
    """A sequence whose steps a backend makes, as its :class:`MultiStep` says."""

    def enter(
        self, text: NDArray[np.int32], room: int, steps: int, rows: int,
        hidden: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Take the sequence's current state, after the method itself has made steps.

        Args:
            text: int32 [n], prompt and output, which only grows; keys and values of all but the
                last token are stored.
            room: number of tokens that may still be committed.
            steps: largest number of steps that may be made.
            rows: number of the sequence's rows in the last forward.
            hidden: layers, from 0, whose outputs the steps return.
        """

    def hold(
        self, pages: NDArray[np.int32], windows: Mapping[int, WindowPages],
        states: StatePages | None = None, own_states: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Take the new page tables (see :class:`Span`); no step writes beyond their pages.

        Args:
            states: where layers with a state read, without writes.
            own_states: at least two slots that nobody else reads. Steps write new states into one
                that is not the current one.
        """

    @property
    def state(self) -> tuple[int, int]:
        """The page whose first state is the current one, and its slot."""

    def leave(self) -> None:
        """Give the method what was learned since :meth:`enter`."""


@runtime_checkable
class MakesSteps(Protocol):
    """A backend that can make several steps of several sequences in one call."""

    def stepper(
        self, asked: MultiStep, stops: NDArray[np.int32], warp: Warp, seed: int, scored: bool
    ) -> Stepper:
        """Make the stepper of one sequence. Raises InvalidInput if a setting is out of range.

        Args:
            asked: the method's request, which says how to draft.
            stops: int32 [n], token ids that end the output, after which no step follows.
            warp, seed: sampling settings; the keys are those of :func:`paradecode.core.noise.key`.
            scored: whether log-probabilities of the sequence's tokens are needed.
        """

    def steps(self, steppers: Sequence[Stepper], given: StepsInput) -> list[list[CommittedStep]]:
        """Make steps, and return those of each sequence.

        No step is made if the first step would fail for a sequence, or needs more pages.
        """


@runtime_checkable
class RunsHeads(Protocol):
    """A backend that runs whole draft heads; for other backends Python runs the heads' networks."""

    def pack(self, head: Head) -> None:
        """Prepare a head now, so that its first draft does not wait for that."""

    def run_head(self, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        """Draft with a head, like :func:`paradecode.backends.heads.run.run_head`."""


def drafts_of(place: RunsNetworks, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
    """Return the drafts of a head, made by the backend's own loop if it has one."""
    if isinstance(place, RunsHeads):
        return place.run_head(head, drafts)
    return run_head(head, drafts, place.apply)


def gives_attention(backend: Backend) -> bool:
    """Return whether the backend can return the attention weights that a span requests."""
    return bool(getattr(backend, "gives_attention", False))


def windows_of(config: ModelConfig) -> tuple[int, ...]:
    """Return the windows of a model's layers, the widest first; 0 sees all, and is the widest."""
    found = {part.window for _, part in config.attentions()} or {0}
    return tuple(sorted(found, key=lambda window: (window > 0, -window)))


def _gone(window: int, first: int, slot: int) -> InvalidInput:
    fix = f"read and store slots from {first * PAGE} on: the window of {window} has passed the rest"
    return InvalidInput("windows", slot, fix)


def check_spans(
    config: ModelConfig, reserved: int, spans: Sequence[Span], records: int = 0, states: int = 0
) -> None:
    """Raise InvalidInput if any size or index of a packed forward is out of range.

    Args:
        reserved: number of pages that the backend has.
        records, states: numbers of pages of records and of slots of states.
    """
    if not spans:
        raise InvalidInput("spans", 0, "give at least one span")
    for span in spans:
        _check_span(config, reserved, span)
        check_states(config, span, records, states)
        if span.layers != spans[0].layers:
            raise InvalidInput("layers", span.layers, "spans of one forward run the same layers")


def _check_span(config: ModelConfig, reserved: int, span: Span) -> None:
    rows, tail = span.positions.size, span.tail.size
    if rows == 0:
        raise InvalidInput("positions", 0, "give at least one row")
    tables = [(window, *span.table(window)) for window in windows_of(config)]
    for window, first, pages in tables:
        _within("windows" if window in span.windows else "pages", pages, 0, reserved)
        if not is_whole(first) or not 0 <= first <= config.context_length // PAGE:
            raise InvalidInput("windows", first, "give the first page that is there")
    capacity = min(first + len(pages) for _, first, pages in tables) * PAGE
    _within("positions", span.positions, 0, config.context_length)
    _within("slots", span.slots, -1, capacity, rows)
    _within("tail", span.tail, 0, capacity)
    _within("tail_positions", span.tail_positions, 0, config.context_length, tail)
    _within("logits", span.logits, 0, rows)
    stored = span.slots[span.slots >= 0]
    for window, first, _ in tables:
        if len(stored) and int(stored.min()) < first * PAGE:
            raise _gone(window, first, int(stored.min()))
    if len(set(stored.tolist())) != len(stored):
        raise InvalidInput("slots", span.slots.tolist(), "store each row in a slot of its own")
    if span.visible is not None:
        _within("visible", span.visible, 0, capacity)
    elif not 0 <= span.context <= capacity:
        raise InvalidInput("context", span.context, f"the page table holds {capacity} slots")
    if span.mask is not None and (
        span.mask.shape != (rows, tail + rows) or span.mask.dtype != np.bool_
    ):
        raise InvalidInput("mask", span.mask.shape, f"give bool [{rows}, {tail + rows}]")
    if span.attention is not None:
        _within("attention", span.attention, 0, rows)
        if span.visible is not None and (np.diff(span.visible) < 0).any():
            raise InvalidInput("visible", span.visible.tolist(), "give ascending slots")
    check_layers(config, span)
    check_canvas(config, span)
    given = span.resume if span.resume is not None else span.embeddings
    count = 0
    if given is not None:
        part = given.ndim == 2 and len(given) < rows and span.resume is None
        count = len(given) if part else rows
        if given.shape != (count, config.hidden_size):
            raise InvalidInput("embeddings", given.shape, f"give [{rows}, {config.hidden_size}]")
    if count < rows:
        if span.tokens.shape != (rows,):
            raise InvalidInput("tokens", span.tokens.shape, f"give {rows}, one for each position")
        _within("tokens", span.tokens[: rows - count], 0, config.vocab_size)


def check_states(config: ModelConfig, span: Span, records: int, states: int) -> None:
    """Raise InvalidInput if the span's states are missing, out of range, or cannot be computed."""
    given = span.states
    if given is not None and not config.keeps_states:
        raise InvalidInput("states", "given", "no layer of the model keeps a state")
    if not config.keeps_states:
        return
    if given is None:
        if span.context or len(span.tail):
            raise InvalidInput("states", None, "rows behind cached rows need them")
        given = StatePages(WindowPages(0, np.empty(0, np.int32)), 0, -1)
    if span.visible is not None or span.denoise is not None:
        fix = "layers with a state see every row before a row, from left to right"
        name = "visible" if span.denoise is None else "denoise"
        raise InvalidInput(name, "chosen slots", fix)
    first, pages = given.records
    _within("records", pages, -1, records)
    _within("writes", np.array([slot for _, slot in given.writes], np.int32), 0, states)
    if not is_whole(first) or first < 0 or not is_whole(given.base) or given.base < 0:
        raise InvalidInput("states", (first, given.base), "pages have numbers from 0 on")
    if not -1 <= given.state < states or (given.state < 0) != (given.base == 0):
        fix = f"give a slot up to {states - 1}, and -1 for page 0 alone"
        raise InvalidInput("state", given.state, fix)
    if given.base * PAGE > span.context:
        fix = f"the context ends at {span.context}, before this page"
        raise InvalidInput("base", given.base, fix)
    held = {*range(given.base * PAGE, span.context), *span.tail.tolist()}
    for page in {slot // PAGE for slot in held}:
        if not 0 <= page - first < len(pages) or pages[page - first] < 0:
            raise InvalidInput("records", page, "all cached rows that are read have records")
    paths, known = span.paths(), span.context - given.base * PAGE
    last = (span.context + chain(paths, known, len(span.tail))) // PAGE
    for page, _ in given.writes:
        if not given.base < page <= last:
            raise InvalidInput("writes", page, f"name pages from {given.base + 1} to {last}")


def check_canvas(config: ModelConfig, span: Span) -> None:
    """Raise InvalidInput if the span is a canvas that the model cannot refine."""
    if span.denoise is None:
        return
    if not config.canvas_length:
        raise InvalidInput("denoise", config.name, "the model does not refine canvases")
    guess, wanted = span.denoise.guess, (len(span.positions), config.vocab_size)
    if guess is not None and guess.shape != wanted:
        raise InvalidInput("denoise", guess.shape, f"give logits {wanted} of the rows")
    if span.embeddings is not None or span.resume is not None:
        raise InvalidInput("denoise", "with states", "the model makes them of the tokens")


def check_layers(config: ModelConfig, span: Span) -> None:
    """Raise InvalidInput if the model lacks a layer of a span's ``layers`` or ``hidden``."""
    layers, hidden = () if span.layers is None else span.layers, span.hidden
    for name, given in (("layers", layers), ("hidden", hidden)):
        if not isinstance(given, (tuple, list)):
            raise InvalidInput(name, given, "give a tuple")
    for layer in layers:
        if not is_layer(layer):
            fix = "give numbers of layers, or Half(number, 'attention' or 'mlp')"
            raise InvalidInput("layers", layer, fix)
        if not 0 <= halves(layer)[0] < config.layers:
            fix = f"the model has layers 0 to {config.layers - 1}"
            raise InvalidInput("layers", layer, fix)
    running = {halves(layer)[0] for layer in layers}
    for number in hidden:
        if not is_whole(number) or not 0 <= number < config.layers:
            fix = f"give numbers of layers, from 0 to {config.layers - 1}"
            raise InvalidInput("hidden", number, fix)
        if span.layers is not None and number not in running:
            raise InvalidInput("hidden", number, "ask for layers that this forward runs")


def _within(
    name: str, values: NDArray[np.integer], low: int, high: int, count: int | None = None
) -> None:
    if values.ndim != 1 or values.dtype.kind != "i" or (count is not None and len(values) != count):
        wanted = "" if count is None else f" of {count}"
        raise InvalidInput(name, values.shape, f"give a vector of whole numbers{wanted}")
    # Most spans have few rows, and few numbers are compared faster without NumPy.
    ends = values.tolist() if len(values) <= 32 else (int(values.min()), int(values.max()))
    if ends and not (low <= min(ends) and max(ends) < high):
        bad = values[(values < low) | (values >= high)][0]
        raise InvalidInput(name, int(bad), f"give numbers from {low} to {high - 1}")
