"""A recording: the target's tokens and the best entries of its distributions, by position."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import build, checked, listed, mapping, nested, number, text, whole
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.models.tokenizer import Tokenizer
from paradecode_lab.measure.machine import digest_of
from paradecode_lab.measure.replay import file

if TYPE_CHECKING:
    from paradecode.llm import LLM

MOST_TOP = 256
"""The most entries of a distribution that may be kept."""
MOST_NAME = 1 << 16
MOST_SIZE = 1 << 24
SECONDS = number(0.0, 1e4)
ROWS = ("top_ids", "top_logits", "log_normalizer")
"""Names of the tensors that have a row for each token of a request except the first."""


@dataclass(frozen=True)
class Identity:
    """The facts by which a recorded model is recognised.

    Attributes:
        vocabulary: hash of all tokens of its tokenizer; empty if it has no tokenizer.
        weights: digest of its weights; empty in recordings of older versions, and if the engine
            does not hold the weights.
    """

    name: str = checked(text(MOST_NAME))
    vocabulary: str = checked(text(MOST_NAME))
    vocab_size: int = checked(whole(1, MOST_SIZE))
    context_length: int = checked(whole(1, MOST_SIZE))
    layers: int = checked(whole(1, MOST_SIZE))
    hidden_size: int = checked(whole(1, MOST_SIZE))
    eos_tokens: tuple[int, ...] = checked(listed(whole(0, MOST_SIZE), MOST_NAME))
    weights: str = checked(text(MOST_NAME), "")

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos_tokens", tuple(self.eos_tokens))

    @classmethod
    def of(cls, engine: Engine, tokenizer: Tokenizer | None = None) -> Identity:
        """Return the identity of the model that an engine runs."""
        config = engine.config
        return cls(
            name=config.name,
            vocabulary=_fingerprint(tokenizer) if tokenizer else "",
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            layers=config.layers,
            hidden_size=config.hidden_size,
            eos_tokens=config.eos_tokens,
            weights=digest_of(engine.weights),
        )

    def require(self, llm: LLM) -> None:
        """Check that ``llm`` is the recorded model.

        Raises:
            InvalidInput: it is another model.
        """
        self.check(Identity.of(llm.engine, llm.tokenizer))

    def check(self, other: Identity) -> None:
        """Check that another model has the same name, sizes, weights and vocabulary.

        A fact that one of the two identities does not have is not compared.

        Raises:
            InvalidInput: a fact differs.
        """
        for name, value in vars(self).items():
            found = getattr(other, name)
            if found != value and "" not in (found, value):
                fix = f"the model here has {name} {found!r}, not {value!r}: record it anew"
                raise InvalidInput("recording", self.name, fix)


@dataclass(frozen=True)
class Timing:
    """Times that a plain step in the engine takes in addition to the cost curve.

    Attributes:
        forward: seconds that a forward of one row takes beyond the cost curve; may be negative.
        row: seconds that each further row adds to ``forward``.
        python: seconds of a step outside its forward.
        top_k, sample: seconds of top-k and of sampling for one row of logits.
    """

    forward: float = checked(number(-1e4, 1e4), 0.0)
    python: float = checked(SECONDS, 2e-4)
    top_k: float = checked(SECONDS, 0.0)
    sample: float = checked(SECONDS, 0.0)
    row: float = checked(SECONDS, 0.0)


@dataclass(frozen=True, eq=False)
class Request:
    """One request that was decoded plainly.

    Attributes:
        prompt: int32 [p], token ids.
        output: int32 [n], token ids with the stop token.
        tail: int32 [m], token ids that the target writes after a stop, because a draft may go on
            there.
        top_ids: int32 [t - 1, k] for a text of t = p + n + m tokens; row i has the most likely ids
            for token i + 1, the best first, before any logit processor.
        top_logits: float32 [t - 1, k], the logits of ``top_ids``.
        log_normalizer: float64 [t - 1], log-sum-exp of all logits; log-probabilities are
            ``top_logits - log_normalizer[:, None]``.
        max_tokens: the request's limit of output tokens.
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
        """Token ids of prompt, output and tail, as int32 [t]."""
        return np.concatenate([self.prompt, self.output, self.tail])


@dataclass(frozen=True, eq=False)
class Recording:
    """A workload with the answers of one model.

    Attributes:
        params: sampling parameters with a seed; each request has its own ``max_tokens``.
        curve: cost of a forward on the machine where the recording was made.
        timing: cost of a plain step on that machine.
        requests: at least one request, in the order in which they ran.
    """

    model: Identity
    params: SamplingParams
    curve: CostCurve
    timing: Timing
    requests: tuple[Request, ...]

    @property
    def k(self) -> int:
        """Number of entries that are kept of each distribution."""
        return self.requests[0].top_ids.shape[1]

    def only(self, ids: Collection[str]) -> Recording:
        """Return the recording with only some requests.

        Raises:
            InvalidInput: the recording does not have an id, or ``ids`` is empty.
        """
        known = {request.id for request in self.requests}
        for name in ids:
            if name not in known:
                raise InvalidInput("prompts", name, "name requests of the recording")
        kept = tuple(request for request in self.requests if request.id in ids)
        if not kept:
            raise InvalidInput("prompts", list(ids), "name at least one request of the recording")
        return replace(self, requests=kept)

    def save(self, path: Path) -> None:
        """Write the recording as a safetensors file; ``path`` never holds an incomplete file."""
        check(self)
        sizes = [[len(r.prompt), len(r.output), len(r.tail), r.max_tokens] for r in self.requests]
        header = {
            "model": asdict(self.model),
            "params": asdict(self.params),
            "curve": asdict(self.curve),
            "timing": asdict(self.timing),
            "requests": [[request.id, request.group] for request in self.requests],
        }
        tensors = {
            "tokens": np.concatenate([request.text for request in self.requests]),
            "lengths": np.array(sizes),
            **{name: np.concatenate([getattr(r, name) for r in self.requests]) for name in ROWS},
        }
        file.write(path, header, tensors)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file that :meth:`save` wrote; raises InvalidInput for any other file."""
        given, tensors = file.read(path)
        header = build(_Header, given, "recording")
        requests = _requests(header.requests, tensors)
        made = cls(header.model, header.params, header.curve, header.timing, requests)
        check(made)
        return made


def cost_curve(name: str, given: Any) -> CostCurve:
    """Build a cost curve from JSON; raises InvalidInput if it is not a valid curve."""
    curve: CostCurve = build(CostCurve, given, name)
    if not curve.sound:
        raise InvalidInput(name, given, "give seconds for ascending rows and contexts")
    return curve


def check(recording: Recording) -> None:
    """Check that the fields of a recording fit together; raises InvalidInput if they do not."""
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
    for name in ("prompt", "output", "tail", "top_ids"):
        ids = getattr(request, name)
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


def _sampling(name: str, value: Any) -> SamplingParams:
    return SamplingParams.from_mapping(mapping(name, value))


def _id_and_group(name: str, value: Any) -> list[str]:
    texts: list[str] = listed(text(MOST_NAME), 2)(name, value)
    if len(texts) != 2:
        raise InvalidInput(name, value, "give an id and a group")
    return texts


@dataclass(frozen=True)
class _Header:
    """The JSON header of a recording's file."""

    model: Identity = checked(nested(Identity))
    params: SamplingParams = checked(_sampling)
    curve: CostCurve = checked(cost_curve)
    timing: Timing = checked(nested(Timing))
    requests: list[list[str]] = checked(listed(_id_and_group, MOST_SIZE))


def _requests(named: list[list[str]], tensors: dict[str, NDArray[Any]]) -> tuple[Request, ...]:
    """Split the tensors of a file, where all requests follow one another, into requests."""
    tokens, lengths, top_ids = tensors["tokens"], tensors["lengths"], tensors["top_ids"]
    if lengths.shape != (len(named), 4) or tokens.ndim != 1 or top_ids.ndim != 2:
        raise InvalidInput("recording lengths", lengths.shape, f"expected [{len(named)}, 4]")
    if not 1 <= top_ids.shape[1] <= MOST_TOP:
        raise InvalidInput("recording top_ids", top_ids.shape, f"1 to {MOST_TOP} a row")
    if lengths.min(initial=0) < 0 or lengths.max(initial=0) > 1 << 31:
        raise InvalidInput("recording lengths", "a length", "lengths are not negative")
    if int(lengths[:, :3].sum()) != len(tokens):
        raise InvalidInput("recording lengths", int(lengths[:, :3].sum()), f"sum to {len(tokens)}")
    rows = len(tokens) - len(named)  # A text's first token has no row.
    for name in ROWS:
        if len(tensors[name]) != rows:
            raise InvalidInput(f"recording {name}", tensors[name].shape, f"give {rows} rows")
    texts = np.split(tokens, np.cumsum(lengths[:, :3])[:-1])
    ends = np.cumsum(lengths[:, :3].sum(axis=1) - 1)[:-1]
    top = {name: np.split(tensors[name], ends) for name in ROWS}
    return tuple(
        Request(
            id=name,
            group=group,
            prompt=texts[3 * index],
            output=texts[3 * index + 1],
            tail=texts[3 * index + 2],
            top_ids=top["top_ids"][index],
            top_logits=top["top_logits"][index],
            log_normalizer=top["log_normalizer"][index],
            max_tokens=int(lengths[index, 3]),
        )
        for index, (name, group) in enumerate(named)
    )


def _fingerprint(tokenizer: Tokenizer) -> str:
    tokens = "\n".join(tokenizer.token(token) for token in range(tokenizer.vocab_size))
    return blake2b(tokens.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
