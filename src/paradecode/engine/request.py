"""A request to the engine, and the check that a model can serve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import is_whole, maybe, number, text, whole
from paradecode.core.constraint import Constraint
from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.models.config import ModelConfig

MOST_PRIORITY = 1 << 30
MOST_NAME = 4096
"""Largest number of characters of a salt or of a request owner's name."""


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A request for one output.

    Attributes:
        prompt: int32 [p], token ids, at least one.
        decoder: makes the method's object for this request.
        params: sampling parameters, with ``n`` 1.
        priority: among requests of one owner, a smaller number goes first; equal ones go in order
            of arrival.
        deadline: seconds from arrival after which the request ends with its output so far.
        prediction: int32 [n], the probable output, for methods that can use it.
        constraint: the set of allowed outputs, or None.
        forks: number of forks that its method has at a time. Their pages are reserved at admission;
            such a request has no slots for drafts.
        writes: True if tokens follow the prompt; a prompt that is only read may fill the context.
        salt: only requests with the same salt share prompts in the prefix cache.
        resume: token ids with which the output begins, decoded earlier with the same seed.
        owner: name of the tenant who makes the request; "" means the salt. Owners take turns and
            share the steps.
    """

    prompt: NDArray[np.int32]
    decoder: Callable[[], Decoder]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    owner: str = ""
    resume: tuple[int, ...] = ()
    prediction: NDArray[np.int32] | None = None
    constraint: Constraint | None = None
    forks: int = 0
    writes: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", self.owner or self.salt)

    def check(self, config: ModelConfig, has_text: bool) -> None:
        """Raise InvalidInput if a model of this configuration cannot serve the request.

        Args:
            has_text: True if the engine can decode texts, and not token ids only.
        """
        prompt = np.asarray(self.prompt)
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu" or len(prompt) == 0:
            raise InvalidInput("prompt", prompt.shape, "give a list of at least one token id")
        if prompt.min() < 0 or prompt.max() >= config.vocab_size:
            bad = prompt[(prompt < 0) | (prompt >= config.vocab_size)][0]
            raise InvalidInput("prompt", int(bad), f"token ids go up to {config.vocab_size - 1}")
        most = config.context_length - self.writes
        if len(prompt) > most:
            fix = f"give at most {most}: the model's context has {config.context_length}"
            raise InvalidInput("prompt", f"{len(prompt)} tokens", fix)
        whole(-MOST_PRIORITY, MOST_PRIORITY)("priority", self.priority)
        maybe(number(0.0))("deadline", self.deadline)
        for name in ("salt", "owner"):
            _encodable(name, getattr(self, name))
        self.params.check_vocabulary(config.vocab_size)
        if self.resume and not 0 <= min(self.resume) <= max(self.resume) < config.vocab_size:
            fix = f"token ids go up to {config.vocab_size - 1}"
            raise InvalidInput("resume", max(self.resume), fix)
        if self.params.stop and not has_text:
            stop = self.params.stop
            raise InvalidInput("stop", stop, "this engine has no tokenizer: use token ids")
        if self.constraint is not None and self.constraint.vocab_size != config.vocab_size:
            fix = f"compile it for this model's {config.vocab_size} tokens"
            raise InvalidInput("constraint", f"{self.constraint.vocab_size} tokens", fix)
        if self.prediction is not None:
            self._check_prediction(np.asarray(self.prediction), config.vocab_size - 1)

    def _check_prediction(self, ids: NDArray[np.int32], top: int) -> None:
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise InvalidInput("prediction", ids.shape, "give a list of token ids")
        if len(ids) and not (ids.min() >= 0 and ids.max() <= top):
            raise InvalidInput("prediction", int(ids.max()), f"token ids go up to {top}")


def _encodable(name: str, value: object) -> None:
    """Raise InvalidInput if a value is not a text, or contains half of a character."""
    given = text(MOST_NAME)(name, value)
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidInput(name, given, "give whole characters, no surrogates") from None


def token_ids(
    ids: Sequence[int], field: str = "prompt", vocab_size: int = 1 << 31
) -> NDArray[np.int32]:
    """Return at least one token id as int32 [n]; raise InvalidInput for anything else."""
    if not len(ids) or not all(map(is_whole, ids)):
        raise InvalidInput(field, ids, "give a text or a list of at least one token id")
    if max(ids) >= vocab_size or min(ids) < 0:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise InvalidInput(field, wrong, f"token ids are whole numbers below {vocab_size}")
    return np.array(ids, np.int32)
