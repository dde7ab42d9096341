"""The native backend: one loaded model on this machine's CPU cores, and its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import (
    CommittedStep,
    Progress,
    Span,
    SpanResult,
    StepsInput,
    check_canvas,
    check_layers,
)
from paradecode.backends.native._core import LogitRows, Model, in_own_state, logits_from
from paradecode.backends.native.heads import NativeHeads, run_networks
from paradecode.backends.native.machine import default_threads, physical_memory
from paradecode.backends.native.shape import shape_record
from paradecode.backends.native.steps import NativeStepper, run_steps
from paradecode.core.checks import one_of
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.head import Head, HeadDraft
from paradecode.core.logits import Bias, Warp
from paradecode.core.multi_step import MultiStep
from paradecode.core.network import Array, Item, Network
from paradecode.core.tree import TokenTree
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Kind, Tensor, Weights, check_weights

FORMATS = {"q4": 0, "q8": 1, "bf16": 2, "f16": 3, "f32": 4}
"""Formats to which any weight can be converted, with their numbers in the core (see types.hpp)."""

SOURCES = {
    Kind.F32: 0, Kind.F16: 1, Kind.BF16: 2, Kind.Q4_0: 3, Kind.Q4_1: 4, Kind.Q8_0: 5, Kind.Q4_K: 6,
    Kind.Q5_0: 7, Kind.Q5_1: 8, Kind.IQ4_NL: 9, Kind.Q2_K: 10, Kind.Q3_K: 11, Kind.Q5_K: 12,
    Kind.Q6_K: 13, Kind.IQ4_XS: 14, Kind.MXFP4: 15,
}  # fmt: skip
"""Kinds of storage that the core reads directly, with their numbers (Source in blocks.hpp)."""

OWN = {
    Kind.F32: 4, Kind.F16: 3, Kind.BF16: 2, Kind.Q4_0: 5, Kind.Q4_1: 0, Kind.Q8_0: 1, Kind.Q4_K: 11,
    Kind.Q5_0: 6, Kind.Q5_1: 7, Kind.IQ4_NL: 8, Kind.Q2_K: 9, Kind.Q3_K: 10, Kind.Q5_K: 12,
    Kind.Q6_K: 13, Kind.IQ4_XS: 14, Kind.MXFP4: 15,
}  # fmt: skip
"""Kind of storage -> the format that keeps its weights unchanged; all other kinds become 8-bit."""

ROWS_AT_A_TIME = 4096


class NativeBackend:
    """Run forwards of one model on the CPU.

    The result of a row depends only on what the row sees. It does not depend on the other rows of
    the forward, the slots, the number of threads, or the instruction set.

    Args:
        config: the architecture.
        weights: one tensor for each name of ``config.tensors()``.
        dtype: ``auto`` keeps the weights as the checkpoint has them (kinds that the core does not
            know become 8-bit); ``q4``, ``q8``, ``bf16``, ``f16`` or ``f32`` convert every matrix.
        kv_dtype: ``f16`` or ``f32``, for keys and values.
        threads: number of threads of a forward, including the calling one; default: the cores that
            this process may use.
        apart: whether the threads are its own, so that its forwards can run at the same time as
            those of other models. Otherwise models with the same number of threads share them and
            take turns.
        progress: called with the packed bytes and all bytes, while the weights are packed.

    Raises:
        InvalidInput: an argument has another value, the instruction set of PARADECODE_ISA is not
            available, or the weights do not fit into this machine's memory.
        InvalidModel: a tensor is missing or has another shape than the configuration implies.
    """

    name = "native"
    gives_attention = True

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        dtype: str = "auto",
        kv_dtype: str = "f16",
        threads: int | None = None,
        apart: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> None:
        one_of("auto", *FORMATS)("dtype", dtype)
        one_of("f16", "f32")("kv_dtype", kv_dtype)
        check_weights(config, weights)
        self.config = config
        # The angles must not depend on the rounding mode that the host program has set.
        self._core: Model | None = in_own_state(
            lambda: Model(
                shape_record(config),
                half_cache=kv_dtype == "f16",
                threads=default_threads() if threads is None else threads,
                apart=apart,
            )
        )
        self._heads = NativeHeads(self.threads)
        self._load(weights, dtype, progress)

    def _load(self, weights: Weights, dtype: str, progress: Progress) -> None:
        core = self._model()
        shapes = self.config.tensors()
        matrices = [name for name, shape in shapes.items() if len(shape) == 2]
        for name in matrices:
            kept = OWN.get(weights[name].kind, FORMATS["q8"])
            wanted = kept if dtype == "auto" else FORMATS[dtype]
            # A rounded router would send rows to other experts.
            exact = name.endswith(".router") or name == "positions"
            core.set_format(name, FORMATS["f32"] if exact else wanted)
        for name in shapes.keys() - set(matrices):
            core.set_vector(name, np.ascontiguousarray(weights[name].float32()))
        # Check this before packing: memory is only taken as it is filled.
        packed, memory = sum(core.work_of(name)[0] for name in matrices), physical_memory()
        if memory is not None and packed > memory:
            fix = (
                f"its weights would take {packed / 1e9:.3g} GB, and this machine has"
                f" {memory / 1e9:.3g} GB: use q4, or a smaller model"
            )
            raise InvalidInput("dtype", dtype, fix)
        # The core packs without Python's global lock, one matrix per thread.
        total = sum(weights[name].data.nbytes for name in matrices)
        with ThreadPoolExecutor(core.threads) as pool:
            filled = pool.map(lambda name: _fill(core, name, weights[name]), matrices)
            for done in accumulate(filled):
                progress(done, total)
        core.finish_loading(self.config.tied_head)

    def _model(self) -> Model:
        if self._core is None:
            raise BackendError("the backend is closed; make a new one")
        return self._core

    @property
    def instruction_set(self) -> tuple[str, str]:
        """The instruction set in use (avx512, avxvnni, avx2, neon, portable, amx), and why."""
        name, reason = self._model().isa
        return name, reason

    @property
    def threads(self) -> int:
        return self._model().threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward of all layers reads."""
        return sum(nbytes for nbytes, _ in self.work().values())

    def work(self) -> dict[str, tuple[int, int]]:
        """Return name -> (bytes, 8-bit products for one row) for each matrix that a forward reads.

        The products are 0 if the weights are floats. An expert's matrix counts with the share of
        rows that it computes on average, or at most if that share is not fixed.
        """
        core, work = self._model(), dict[str, tuple[int, int]]()
        for name, shape in self.config.tensors().items():
            if len(shape) != 2 or not name.startswith(("layers.", "token_project")):
                continue
            work[name] = core.work_of(name)
            feed = self.config.stack[int(name.split(".")[1])].feed if ".experts." in name else None
            if feed is not None and feed.mixture is not None:
                part = feed.mixture.chosen / feed.mixture.experts  # That a row uses.
                size, products = work[name]
                work[name] = int(size * part), int(products * part)
        return work | {"head": core.work_of("head")}

    @property
    def slot_bytes(self) -> dict[int, int]:
        """Window -> bytes of the keys and values of one token in the layers with that window."""
        return dict(self._model().slot_bytes)

    @property
    def cache_bytes(self) -> int:
        """Bytes of memory that keys and values have taken so far, at most a stretch too many."""
        return self._model().cache_bytes

    def profile(self, on: bool) -> dict[str, float]:
        """Start or stop measuring the time of forwards by kind of work.

        Returns:
            Seconds of each kind of work since the last call, averaged over the threads; their sum
            is the duration of the forwards.
        """
        return self._model().profile(on)

    def traffic(self, on: bool) -> list[Traffic]:
        """Start or stop counting the bytes that forwards read and write.

        Returns:
            One entry for each forward since the last call; each of several steps in one call
            counts.
        """
        return [Traffic(*one) for one in self._model().traffic(on)]

    def reserve(self, pages: int) -> None:
        self._model().reserve(pages)

    def reserve_states(self, records: int, states: int) -> None:
        self._model().reserve_states(records, states)

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        core = self._model()
        if not spans:
            raise InvalidInput("spans", 0, "give at least one span")
        layers = spans[0].layers
        if layers is not None:
            check_layers(self.config, spans[0])
        for span in spans:
            if type(span.layers) is not type(layers) or span.layers != layers:
                raise InvalidInput("layers", span.layers, "give all spans the same layers")
        canvases = {
            index: self._guess(span) for index, span in enumerate(spans) if span.denoise is not None
        }
        results = core.forward(spans, layers, canvases=canvases)
        return [SpanResult(NativeLogits(rows), hidden, shares) for rows, hidden, shares in results]

    def _guess(self, span: Span) -> LogitRows | None:
        """Return the canvas's logits of the previous step as an object of the core."""
        assert span.denoise is not None
        check_canvas(self.config, span)
        guess = span.denoise.guess
        if guess is not None and not isinstance(guess, NativeLogits):
            raise InvalidInput("denoise", type(guess).__name__, "give logits of this backend")
        return None if guess is None else guess.rows

    def stepper(
        self, asked: MultiStep, stops: NDArray[np.int32], warp: Warp, seed: int, scored: bool
    ) -> NativeStepper:
        return NativeStepper(asked, stops, warp, seed, scored)

    def steps(
        self, steppers: Sequence[NativeStepper], given: StepsInput
    ) -> list[list[CommittedStep]]:
        return run_steps(self._model(), steppers, given)

    def copy(
        self, source: NDArray[np.int64], target: NDArray[np.int64], window: int | None = None
    ) -> None:
        start, end = (np.ascontiguousarray(slots, np.int64) for slots in (source, target))
        self._model().copy(start, end, -1 if window is None else window)

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        return run_networks(network, items)

    def pack(self, head: Head) -> None:
        self._heads.pack(head)

    def run_head(self, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        self._model()
        return self._heads.run_head(head, drafts)

    def close(self) -> None:
        self._core = None
        self._heads.close()


class Traffic(NamedTuple):
    """The rows and the memory traffic of one forward."""

    rows: int
    context: int
    """Number of cached tokens that the forward's spans see, summed."""
    nbytes: int
    """Bytes of weights, keys and values, logits, and memory newly taken from the system."""
    experts: int
    """Number of experts to which rows were sent, added up over the layers; no shared ones."""


class NativeLogits:
    """Logits that stay in C++. ``select``, and ``with_bias`` with a bias of None, copy nothing."""

    __slots__ = ("rows",)

    def __init__(self, rows: LogitRows) -> None:
        self.rows = rows

    @classmethod
    def from_array(cls, values: NDArray[np.floating]) -> NativeLogits:
        """Copy an array [R, V] into native logits."""
        return cls(logits_from(np.ascontiguousarray(values, np.float32)))

    @property
    def shape(self) -> tuple[int, int]:
        rows, vocabulary = self.rows.shape
        return rows, vocabulary

    def numpy(self) -> NDArray[np.float32]:
        """Return a copy, float32 [R, V]; for tests and for callers that need every value."""
        return self.rows.numpy()

    def select(self, rows: Sequence[int]) -> NativeLogits:
        return NativeLogits(self.rows.select([int(row) for row in rows]))

    def with_bias(self, biases: Sequence[Bias | None]) -> NativeLogits:
        plain = [
            bias and (np.ascontiguousarray(bias[0], np.int32), np.ascontiguousarray(bias[1], "f4"))
            for bias in biases
        ]
        return NativeLogits(self.rows.with_bias(plain))

    def tempered(self, temperature: float) -> NativeLogits:
        return NativeLogits(self.rows.tempered(temperature))

    def argmax(self) -> NDArray[np.int32]:
        return self.rows.argmax()

    def top_k(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids, values = self.rows.top_k(k)
        return ids, values

    def gather(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        return self.rows.gather(np.ascontiguousarray(ids, np.int64))

    def log_normalizer(self) -> NDArray[np.float64]:
        return self.rows.log_normalizer()

    def log_probability(self, ids: NDArray[np.integer]) -> NDArray[np.float64]:
        return self.gather(ids).astype(np.float64) - self.log_normalizer()[:, None]

    def margin(self) -> NDArray[np.float64]:
        return self.rows.margin()

    def entropy(self) -> NDArray[np.float64]:
        return self.rows.entropy()

    def probabilities(self, warp: Warp) -> NDArray[np.float64]:
        return self.rows.probabilities(warp.temperature, warp.top_k, warp.top_p, warp.min_p)

    def sample(self, warp: Warp, keys: Sequence[int]) -> NDArray[np.int32]:
        if warp.temperature == 0.0:
            return self.rows.argmax()
        return self.rows.sample(
            warp.temperature, warp.top_k, warp.top_p, warp.min_p, [int(key) for key in keys]
        )


def _fill(core: Model, name: str, weight: Tensor) -> int:
    """Pack a matrix, and return its bytes in the file."""
    for first, source, rows in _pieces(weight):
        core.fill(name, first, source, rows)
    weight.release()
    return weight.data.nbytes


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield the rows of a matrix in pieces: (first row, source, uint8 [rows, bytes per row])."""
    count, columns = tensor.shape
    native = tensor.kind in SOURCES
    data = np.ascontiguousarray(tensor.data)
    if tensor.kind in (Kind.F32, Kind.F16, Kind.BF16):
        data = data.reshape(count, columns)
    for first in range(0, count, ROWS_AT_A_TIME):
        last = min(count, first + ROWS_AT_A_TIME)
        piece = data[first:last]
        if native:
            if tensor.kind == Kind.F32:
                piece = np.ascontiguousarray(piece, np.float32)
            yield first, SOURCES[tensor.kind], piece.view(np.uint8).reshape(last - first, -1)
        else:
            values = Tensor(piece, (last - first, columns), tensor.kind).float32()
            rows = np.ascontiguousarray(values, np.float32)
            yield first, SOURCES[Kind.F32], rows.view(np.uint8)
