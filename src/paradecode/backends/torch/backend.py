"""The PyTorch backend: pack spans, keep the paged K/V, and run the transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.interface import (
    PAGE,
    STATES,
    Span,
    SpanResult,
    check_spans,
    windows_of,
)
from paradecode.backends.torch.device import open_device
from paradecode.backends.torch.model import Transformer, attention, attention_weights, pack
from paradecode.backends.torch.network import TorchNetworks
from paradecode.backends.torch.small_states import run_small_states
from paradecode.backends.torch.states import StateMemory, StateView, run_states
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.layers import halves
from paradecode.core.logits import ArrayLogits, Bias, Logits, Warp
from paradecode.core.network import Array, Item, Network
from paradecode.models.config import ModelConfig
from paradecode.models.parts import StatePart
from paradecode.models.recurrence import Convolution, Recurrence
from paradecode.models.weights import Weights, check_weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class TorchLogits:
    """Rows of logits [R, V] on a torch device (see :class:`paradecode.core.logits.Logits`)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def select(self, rows: Sequence[int]) -> TorchLogits:
        return TorchLogits(self.values[list(rows)])

    def with_bias(self, biases: Sequence[Bias | None]) -> TorchLogits:
        values = self.values.clone()
        for row, bias in zip(values, biases, strict=True):
            if bias is not None:
                ids = torch.from_numpy(bias[0].astype(np.int64)).to(values.device)
                row[ids] += torch.from_numpy(bias[1]).to(values.device, values.dtype)
        return TorchLogits(values)

    def tempered(self, temperature: float) -> TorchLogits:
        return TorchLogits(self.values / temperature)

    def argmax(self) -> NDArray[np.int32]:
        top = self.values.max(dim=1, keepdim=True).values
        if not torch.isfinite(top).all():
            raise BackendError("the model returned logits that are NaN or infinite")
        # torch does not say which of several maxima it returns; the protocol wants the first.
        first = (self.values == top).to(torch.uint8).argmax(dim=1)
        return first.to(torch.int32).cpu().numpy()

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        k = min(k, self.shape[1])
        values, ids = torch.sort(self.values, dim=1, descending=True, stable=True)
        if values[:, :1].isnan().any():  # NaN is the greatest to torch.sort.
            raise BackendError("the model returned logits that are NaN")
        return ids[:, :k].int().cpu().numpy(), values[:, :k].float().cpu().numpy()

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._at(ids).float().cpu().numpy()

    def log_normalizer(self) -> NDArray[np.float64]:
        return torch.logsumexp(self.values.double(), dim=1).cpu().numpy()

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self._at(ids).double().cpu().numpy() - self.log_normalizer()[:, None]

    def margin(self) -> NDArray[np.float64]:
        p = torch.softmax(self.values.double(), dim=1).topk(min(2, self.shape[1]), dim=1).values
        return (p[:, 0] - p[:, 1] if p.shape[1] > 1 else p[:, 0]).cpu().numpy()

    def entropy(self) -> NDArray[np.float64]:
        return torch.special.entr(torch.softmax(self.values.double(), dim=1)).sum(1).cpu().numpy()

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        return self._host().probabilities(warp)

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        # The noise is defined by NumPy's 64-bit arithmetic; one copy of R rows keeps it one rule.
        return self.argmax() if warp.temperature == 0.0 else self._host().sample(warp, keys)

    def _at(self, ids: NDArray[np.integer]) -> Tensor:
        index = torch.from_numpy(ids.astype(np.int64)).to(self.values.device)
        return torch.gather(self.values, 1, index)

    def _host(self) -> ArrayLogits:
        return ArrayLogits(self.values.cpu().numpy())


DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


class TorchBackend:
    """The reference backend (see :class:`paradecode.backends.interface.Backend`).

    Args:
        config, weights: the model.
        dtype: ``fp32``, ``fp64`` or ``bf16``; ``auto`` is fp32 on CPU and bf16 on CUDA.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: intra-op threads; None keeps torch's choice.
        mesh: ranks that divide the model, including this process; None for the whole model.

    Raises:
        InvalidInput: the dtype is unknown, or the device does not exist.
        InvalidModel: a weight is missing or misshapen.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        check_weights(config, weights)
        self.device = open_device(device)
        if dtype == "auto":
            dtype = "fp32" if self.device.type == "cpu" else "bf16"
        if dtype not in DTYPES:
            raise InvalidInput("dtype", dtype, f"use one of auto, {', '.join(DTYPES)}")
        if threads is not None:
            torch.set_num_threads(threads)
        self.name = f"torch-{self.device.type}-{dtype}"
        self.gives_attention = mesh is None  # Else each rank has the weights of its own heads.
        self.config = config
        self.model: Transformer
        if mesh is None:
            self.model = Transformer(config, weights, DTYPES[dtype], self.device)
        else:
            from paradecode.backends.torch.parallel.model import DividedTransformer

            self.name += f"-{mesh.size()}-ranks"
            self.model = DividedTransformer(config, weights, DTYPES[dtype], self.device, mesh)
        self._networks = TorchNetworks(self.device)
        self.pages = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.states: dict[tuple[int, StatePart], StateMemory] = {}
        self.reserve_states(0, 0)

    def reserve(self, pages: int) -> None:
        self.pages = pages
        for cache in (self.keys, self.values):
            cache[:] = [
                torch.empty(
                    (pages * PAGE, *self.model.cached(layer)), dtype=self.model.dtype,
                    device=self.device,
                )
                for layer in range(self.config.layers)
            ]  # fmt: skip

    def reserve_states(self, records: int, states: int) -> None:
        self._counts, sizes = (records, states), (self.config.hidden_size, records, states)
        self.states = {
            (layer, part): StateMemory(part, *sizes, self.model.dtype, self.device)
            for layer, parts in enumerate(self.config.stack)
            for part in parts.states
        }

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        check_spans(self.config, self.pages, spans, *self._counts)
        layers = spans[0].layers if spans[0].layers is not None else range(self.config.layers)
        ends = np.cumsum([len(span.positions) for span in spans]).tolist()
        ranges = [slice(end - len(s.positions), end) for s, end in zip(spans, ends, strict=True)]
        views = [_View(span, self.config, self.device) for span in spans]
        x = pack([self._input(span) for span in spans])
        marks = [torch.full((len(span.positions), 1), span.denoise is not None) for span in spans]
        places = np.concatenate([span.positions for span in spans])
        positions = torch.from_numpy(places.astype(np.int64)).to(self.device)
        known = self.model.rows(positions, pack(marks).to(self.device))
        if self.config.token_width:
            tokens = np.concatenate([span.tokens for span in spans]).astype(np.int64)
            known.inputs = self.model.token_inputs(torch.from_numpy(tokens).to(self.device), x)
        new: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # Of a layer and a span.
        hidden: list[dict[int, NDArray[np.float32]]] = [{} for _ in spans]
        weights: list[dict[int, NDArray[np.float32]]] = [{} for _ in spans]
        # States in this type lose nothing, so rows that resume from them compute the same.
        wide = torch.promote_types(self.model.dtype, torch.float32)

        def attend(layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
            part, mixed = self.config.stack[layer].attention, []
            assert part is not None
            source = part.keys_of if part.keys_of >= 0 else layer
            window = part.window
            keys, values = self.keys[source], self.values[source]
            sinks = self.model.w.get(f"layers.{layer}.sinks")
            for number, (span, rows, view) in enumerate(zip(spans, ranges, views, strict=True)):
                if k is not None and v is not None:
                    new[source, number] = k[rows], v[rows]
                new_k, new_v = new[source, number]
                read = view.cached[window]
                seen_k, seen_v = torch.cat([keys[read], new_k]), torch.cat([values[read], new_v])
                seen, distance = view.seen[window], view.distance[window]
                about = (part, distance, sinks)
                mixed.append(attention(q[rows], seen_k, seen_v, seen, *about))
                if span.attention is not None and len(span.attention):
                    asked = torch.from_numpy(span.attention.astype(np.int64)).to(self.device)
                    shared = attention_weights(
                        q[rows][asked], seen_k, seen[asked], part, distance[asked], sinks
                    )
                    weights[number][layer] = view.spread(window, shared).float().cpu().numpy()
                if k is not None:
                    own = view.targets[window]
                    keys[own], values[own] = new_k[view.kept], new_v[view.kept]
            return pack(mixed)

        recalled = [StateView(span) for span in spans] if self.config.keeps_states else []

        def recall(layer: int, part: StatePart, h: Tensor) -> Tensor:
            name, rest = f"layers.{layer}.", (h, ranges, recalled, self.states[layer, part])
            if isinstance(part, (Convolution, Recurrence)):
                return run_states(self.model, name, part, *rest)
            return run_small_states(self.model, name, part, *rest)

        known.recall = recall
        for layer, attends, feeds in map(halves, layers):
            x = self.model.layer(layer, x, known, attend, attends, feeds)
            for span, rows, out in zip(spans, ranges, hidden, strict=True):
                if layer in span.hidden:
                    out[layer] = x[rows].to(wide).cpu().numpy()
        wanted = [
            torch.from_numpy(span.logits.astype(np.int64)).to(self.device) + rows.start
            for span, rows in zip(spans, ranges, strict=True)
        ]
        logits = self.model.logits(x[torch.cat(wanted)])
        parts = logits.split([len(rows) for rows in wanted])
        return [
            SpanResult(self._logits(part), out, shares)
            for part, out, shares in zip(parts, hidden, weights, strict=True)
        ]

    def _input(self, span: Span) -> Tensor:
        if span.denoise is not None:
            guess: Any = span.denoise.guess  # As this backend gave it.
            if guess is not None:
                guess = torch.as_tensor(guess.values).to(self.device)
            tokens = torch.from_numpy(span.tokens.astype(np.int64)).to(self.device)
            return self.model.guessed(tokens, guess)
        given = span.resume if span.resume is not None else span.embeddings
        rows, wide = len(span.slots), torch.empty(0, dtype=self.model.dtype, device=self.device)
        looked_up = rows - (0 if given is None else len(given))
        positions = torch.from_numpy(span.positions.astype(np.int64)).to(self.device)
        parts = []
        if looked_up:
            tokens = torch.from_numpy(span.tokens[:looked_up].astype(np.int64)).to(self.device)
            parts.append(self.model.enter(self.model.embed(tokens), positions[:looked_up]))
        if given is not None:
            states = torch.from_numpy(np.ascontiguousarray(given)).to(parts[0] if parts else wide)
            if span.resume is None:
                states = self.model.enter(states, positions[looked_up:])
            parts.append(states)
        return pack(parts)

    def _logits(self, values: Tensor) -> Logits:
        if self.device.type == "cpu":
            return ArrayLogits(values.numpy())
        return TorchLogits(values)

    @torch.inference_mode()
    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        start = torch.from_numpy(np.ascontiguousarray(source, np.int64)).to(self.device)
        end = torch.from_numpy(np.ascontiguousarray(target, np.int64)).to(self.device)
        if window == STATES:
            for memory in self.states.values():
                memory.records[end] = memory.records[start]
            return
        for layer, part in self.config.attentions():
            if window is None or part.window == window:
                for cache in (self.keys[layer], self.values[layer]):
                    cache[end] = cache[start]

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        return self._networks.apply(network, items)

    def close(self) -> None:
        self.keys.clear()
        self.values.clear()
        self.states.clear()
        self.model.w.clear()
        self._networks.close()
        self.pages = 0


class _View:
    """A span's slots as indices on the device, computed once for all layers."""

    def __init__(self, span: Span, config: ModelConfig, device: torch.device) -> None:
        base = np.arange(span.context) if span.visible is None else span.visible.astype(np.int64)
        cached = np.concatenate([base, span.tail.astype(np.int64)])
        at = np.concatenate([base, span.tail_positions, span.positions]).astype(np.int64)
        count = len(span.positions)
        seen = np.ones((count, len(at)), bool)
        if span.mask is not None:
            seen[:, len(base) :] = span.mask
        else:
            seen[:, len(cached) :] = np.tri(count, dtype=bool)
        rows = span.positions[:, None].astype(np.int64)
        # All rows of a canvas see one another, and as far back as its first row does.
        first = rows if span.denoise is None else rows[:1]
        kept = np.flatnonzero(span.slots >= 0)

        def placed(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values).to(device)

        self.kept = placed(kept)
        self.cached, self.targets = dict[int, Tensor](), dict[int, Tensor]()
        self.seen, self.distance = dict[int, Tensor](), dict[int, Tensor]()
        self._columns = dict[int, Tensor]()
        for window in windows_of(config):
            mask = seen & (at[None, :] > first - window) if window else seen
            # A window may have passed pages of the other cached slots, so these are not read.
            read = np.ones(len(at), bool)
            if window:
                read[: len(cached)] = mask[:, : len(cached)].any(axis=0)
            if not mask.any(axis=1).all():
                raise InvalidInput("mask", "a row that sees nothing", "let each row see itself")
            self.cached[window] = placed(span.physical(window, cached[read[: len(cached)]]))
            self.targets[window] = placed(span.physical(window, span.slots[kept]))
            self.seen[window], self.distance[window] = (
                placed(mask[:, read]),
                placed(at[None, read] - rows),
            )
            self._columns[window] = placed(np.flatnonzero(read))
        by_position = len(base) + np.argsort(at[len(base) :], kind="stable")
        self._order = placed(np.concatenate([np.arange(len(base)), by_position]))

    def spread(self, window: int, weights: Tensor) -> Tensor:
        """Return attention weights [..., tokens read] for all tokens, in the order of positions."""
        whole = weights.new_zeros((*weights.shape[:-1], len(self._order)))
        whole[..., self._columns[window]] = weights
        return whole[..., self._order]
