"""A backend that runs no model: it reads its results from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import Span, SpanResult, drafts_of
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Array, Head, HeadDraft, Item, Network
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.models.config import Rope, uniform
from paradecode_lab.measure.replay.between import Stopwatch
from paradecode_lab.measure.replay.logits import Reading, RecordedLogits, RecordedRows
from paradecode_lab.measure.replay.recording import Recording
from paradecode_lab.measure.serving import WatchedPlain, finish

END = "\0"
"""Stop text of every replayed request; it appears after the last recorded token."""


class RecordingBackend:
    """Implements :class:`paradecode.backends.interface.Backend` for one request at a time.

    A row that sees only recorded tokens gets its recorded result. Any other row gets the result of
    a similar row.

    Args:
        every: after each ``every``-th forward the processor's caches are emptied; 0 never empties
            them.
        target: an idle engine of the recorded model, for methods that read hidden states; it runs
            each text once.

    Attributes:
        reading: how the replies were used; see :class:`Reading`.
        rows: (number of rows, context length) of every forward since :meth:`open`.
        between: measures the time of Python code between forwards.
    """

    def __init__(self, recording: Recording, every: int = 0, target: Engine | None = None) -> None:
        model = recording.model
        self.name = "recording"
        self._target = target
        self.config = target.config if target is not None else uniform(
            name=model.name, architecture="recording", vocab_size=model.vocab_size,
            hidden_size=model.hidden_size, layers=model.layers, heads=1, kv_heads=1, head_dim=2,
            intermediate_size=1, context_length=model.context_length, rope=Rope(dim=2),
            eos_tokens=model.eos_tokens,
        )  # fmt: skip
        self.reading = Reading()
        self.rows: list[tuple[int, int]] = []
        self.between = Stopwatch(every)
        self._recording, self._table = recording, RecordedRows(recording)
        self.open(0)

    def open(self, index: int) -> None:
        """Begin to decode the request with this index."""
        request = self._recording.requests[index]
        self._text, self._output = request.text, len(request.output)
        self._start, self._end = self._table.starts[index : index + 2]
        self.rows = []
        self._states: dict[int, Array] = {}
        self.between.open()

    def text(self) -> Ending:
        """Return the detokenizer of the open request, for the engine."""
        return Ending(self._output)

    def reserve(self, pages: int) -> None:
        pass

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        self.between.forward_begins()
        results = [self._one(span) for span in spans]
        self.between.forward_ends()
        return results

    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        pass

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        if self._target is not None:
            apply = self._target.models[TARGET].apply
            return self.between.network(lambda: list(apply(network, items)))
        # Imported here, so that recordings can be read where the core was not built.
        from paradecode.backends.native.heads import run_networks

        return run_networks(network, items)

    def pack(self, head: Head) -> None:
        pass

    def run_head(self, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        if self._target is None:
            return run_head(head, drafts, self.apply)
        place = self._target.heads or self._target.models[TARGET]
        return self.between.network(lambda: drafts_of(place, head, drafts))

    def close(self) -> None:
        pass

    def _one(self, span: Span) -> SpanResult:
        if span.layers is not None:
            raise _needs_model("runs a part of the model's layers")
        if span.hidden and self._target is None:
            raise _needs_model("reads the model's hidden states")
        if span.embeddings is not None or span.resume is not None or len(span.tail):
            raise _needs_model("asks the model for more than logits")
        self.rows.append((len(span.positions), span.context))
        tokens, positions = span.tokens, span.positions
        seen = np.tri(len(tokens), dtype=bool) if span.mask is None else span.mask
        inside = positions < len(self._text)
        right = inside & (tokens == self._text[np.where(inside, positions, 0)])
        true = ~(seen & ~right).any(axis=1)
        rows = self._start + positions.astype(np.int64)
        known = true & (rows < self._end)
        hidden = {layer: self._hidden(layer, positions, true) for layer in span.hidden}
        wanted = span.logits
        # The draft is right, but reaches beyond the recorded tokens.
        if (true & ~known)[wanted].any():
            self.reading.exact = False
        now = int(rows[wanted[known[wanted]]].min(initial=self._end - 1))
        for row in wanted[~known[wanted]].tolist():
            above = np.flatnonzero(seen[row] & (positions == positions[row] - 1))
            before = tokens[above[-1]] if len(above) else self._text[positions[row] - 1]
            rows[row] = self._table.like(int(before), int(tokens[row]), now, self._end)
        logits = RecordedLogits(self._table, rows[wanted], known[wanted], self.reading)
        return SpanResult(logits, hidden)

    def _hidden(self, layer: int, positions: NDArray[np.int32], true: NDArray[np.bool_]) -> Array:
        """Return a layer's float32 [R, D] outputs for rows of the recorded text.

        Rows of other texts are 0; no method keeps them.
        """
        if layer not in self._states:
            assert self._target is not None
            self._states[layer] = hidden_states(self._target, self._text[:-1], layer)
        states = self._states[layer]
        known = true & (positions < len(states))
        rows = np.zeros((len(positions), states.shape[1]), np.float32)
        rows[known] = states[positions[known]]
        return rows


def hidden_states(engine: Engine, text: NDArray[np.int32], layer: int) -> Array:
    """Return float32 [t, D]: a layer's output for each token of a text in the engine's model."""
    seen: list[Array] = []
    listener = WatchedPlain(lambda _, reply: seen.append(reply.hidden[layer]), (layer,))
    params = SamplingParams(max_tokens=1, seed=0)
    # The request has a tenant of its own, so that no row of the text is cached.
    finish(engine, GenerationRequest(text, lambda: listener, params, salt=f"replay {uuid4()}"))
    return np.concatenate(seen)


class Ending:
    """A detokenizer that gives no text, and ``END`` after ``count`` tokens."""

    def __init__(self, count: int) -> None:
        self._left = count

    def push(self, token: int) -> str:
        self._left -= 1
        return END if self._left == 0 else ""

    def flush(self) -> str:
        return ""


def _needs_model(what: str) -> InvalidInput:
    return InvalidInput("decoder", what, "replay has no model to run: measure it in the engine")
