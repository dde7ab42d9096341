"""What a recording holds: the target's tokens and the best of its distributions, by position."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.models.config import ModelConfig
from paradecode.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from paradecode.llm import LLM

MOST_TOP = 256
"""Most entries of a distribution that are kept."""


@dataclass(frozen=True)
class Identity:
    """Which model was recorded.

    Attributes:
        name: what users call it.
        vocabulary: hash of all its tokens; empty when it has no tokenizer.
        vocab_size, context_length, layers, hidden_size, eos_tokens: as in its configuration.
    """

    name: str
    vocabulary: str
    vocab_size: int
    context_length: int
    layers: int
    hidden_size: int
    eos_tokens: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig, tokenizer: Tokenizer | None = None) -> Identity:
        """The identity of a model."""
        return cls(
            config.name, _fingerprint(tokenizer) if tokenizer else "", config.vocab_size,
            config.context_length, config.layers, config.hidden_size, tuple(config.eos_tokens),
        )  # fmt: skip

    def require(self, llm: LLM) -> None:
        """Raise InvalidInput unless ``llm`` has the recorded model's name, sizes and vocabulary."""
        other = Identity.of(llm.config, llm.tokenizer)
        if other != self:
            raise InvalidInput("recording", self.name, f"record {other.name} anew")


@dataclass(frozen=True)
class Timing:
    """What a plain step took in the engine, beside what the cost curve says of its forward.

    Attributes:
        forward: seconds that a forward of one row takes beyond the cost curve; may be negative.
        row: seconds that each further row adds to that.
        python: seconds of a step outside of its forward.
        top_k, sample: seconds for one row of the two vocabulary-sized operations.
    """

    forward: float = 0.0
    python: float = 2e-4
    top_k: float = 0.0
    sample: float = 0.0
    row: float = 0.0


@dataclass(frozen=True, eq=False)
class Request:
    """One plainly decoded request.

    Attributes:
        id, group: of the workload.
        prompt: int32 [p].
        output: int32 [n], the stop token included.
        tail: int32 [m], what the target would have said after a stop: a draft may go on there.
        top_ids: int32 [t - 1, k] for a text of t = p + n + m tokens; row i is about token i + 1:
            the most likely ones, best first, before any processor.
        top_logits: float32 [t - 1, k], their logits.
        log_normalizer: float64 [t - 1], log-sum-exp of all logits; log-probabilities are
            ``top_logits - log_normalizer[:, None]``.
        max_tokens: the bound that the request had.
    """

    id: str
    group: str
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    tail: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    log_normalizer: NDArray[np.float64]
    max_tokens: int

    @property
    def text(self) -> NDArray[np.int32]:
        """int32 [t]: prompt, output and tail."""
        return np.concatenate([self.prompt, self.output, self.tail])


@dataclass(frozen=True, eq=False)
class Recording:
    """A workload with one model's answers.

    Attributes:
        model: whose answers.
        params: how they were sampled; ``max_tokens`` is each request's own. The seed is set.
        curve: what a forward cost on the machine of the recording.
        timing: what a plain step cost there.
        requests: at least one, in the order they ran.
    """

    model: Identity
    params: SamplingParams
    curve: CostCurve
    timing: Timing
    requests: tuple[Request, ...]

    @property
    def k(self) -> int:
        """Entries kept of each distribution."""
        return self.requests[0].top_ids.shape[1]

    def only(self, ids: Collection[str]) -> Recording:
        """The recording of some requests; raises InvalidInput for an id it does not have."""
        known = {request.id for request in self.requests}
        for name in ids:
            if name not in known:
                raise InvalidInput("prompts", name, "name requests of the recording")
        kept = tuple(request for request in self.requests if request.id in ids)
        if not kept:
            raise InvalidInput("prompts", list(ids), "name at least one request of the recording")
        return replace(self, requests=kept)

    def save(self, path: Path) -> None:
        """Write one file (safetensors); the path never holds half of it."""
        from paradecode.measure.replay.file import write

        write(self, path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what :meth:`save` wrote; raises InvalidInput for anything else."""
        from paradecode.measure.replay.file import read

        return read(path)


def check(recording: Recording) -> None:
    """Raise InvalidInput where a recording contradicts itself."""
    if not recording.requests:
        raise InvalidInput("recording requests", 0, "record at least one prompt")
    ids = [request.id for request in recording.requests]
    if len(set(ids)) < len(ids):
        raise InvalidInput("recording ids", len(ids), "give each request an id of its own")
    if recording.params.seed is None or recording.params.n != 1:
        raise InvalidInput("recording params", recording.params, "they need a seed, and n = 1")
    for request in recording.requests:
        _check_request(request, recording.model, recording.k)


def _check_request(request: Request, model: Identity, k: int) -> None:
    where = f"recording request {request.id!r}"
    given = {"prompt": request.prompt, "output": request.output, "tail": request.tail,
             "top ids": request.top_ids}  # fmt: skip
    for name, ids in given.items():
        if ids.size and not (ids.min() >= 0 and ids.max() < model.vocab_size):
            raise InvalidInput(f"{where} {name}", "a token id", f"ids are below {model.vocab_size}")
    if len(request.prompt) == 0 or not 1 <= len(request.output) <= request.max_tokens:
        raise InvalidInput(where, len(request.output), "a request has a prompt and an output")
    if len(request.prompt) + len(request.output) > model.context_length:
        raise InvalidInput(where, len(request.prompt), "the request exceeds the model's context")
    rows = len(request.text) - 1
    shapes = request.top_ids.shape, request.top_logits.shape, request.log_normalizer.shape
    if k < 1 or shapes != ((rows, k), (rows, k), (rows,)):
        raise InvalidInput(where, shapes, f"expected [{rows}, {k}] twice and [{rows}]")
    sound = np.isfinite(request.top_logits).all() and np.isfinite(request.log_normalizer).all()
    if not sound or (np.diff(request.top_logits, axis=1) > 0).any():
        raise InvalidInput(f"{where} top logits", "values", "they are finite and the best is first")


def _fingerprint(tokenizer: Tokenizer) -> str:
    tokens = "\n".join(tokenizer.token(token) for token in range(tokenizer.vocab_size))
    return blake2b(tokens.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
