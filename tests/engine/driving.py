"""Helpers to drive an engine by hand: decoders from generator functions, a loop, an oracle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.core.decoder import Apply, Forward, Steps
from paradecode.core.network import Network, Op
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import LetterText, ToyBackend, letter

PROMPT = tuple(4 + (5 * i * i + 2 * i) % 24 for i in range(37))
LOOP = (5, 6, 7, 8, 9) * 4
NEGATIVE = {
    width: Network({"x": width}, (Op("y", "scale", ("x",), ("minus",)),),
                   {"minus": -np.ones(width, np.float32)})
    for width in (1, 2, 3)
}  # fmt: skip
"""Networks that change the sign of numbers, by the width of their rows."""


def negative(rows: int = 1, width: int = 1, value: float = 1.0) -> Apply:
    """Return a request for ``-value`` in ``rows`` rows."""
    return Apply(NEGATIVE[width], {"x": np.full((rows, width), value, np.float32)})


@dataclass
class By:
    """A decoder whose ``decode`` is the given generator function."""

    decode: Callable[[LiveSequence], Steps]


def by(function: Callable[[Any], Steps]) -> Callable[[], Any]:
    return lambda: By(function)


def plainly(seq: Any) -> Steps:
    """Decode plainly to the end."""
    while not seq.finished:
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))


def toy_engine(
    models: dict[str, Backend] | None = None, text: bool = False, **limits: Any
) -> Engine:
    sizes = Limits(**{"kv_tokens": 2048, **limits})
    return Engine(models or {"target": ToyBackend()}, sizes, LetterText if text else None)


def add(
    engine: Engine,
    decode: Callable[[Any], Steps] = plainly,
    prompt: Sequence[int] = LOOP,
    max_tokens: int = 12,
    *,
    priority: int = 0,
    deadline: float | None = None,
    salt: str = "",
    **params: Any,
) -> LiveSequence:
    values = {"max_tokens": max_tokens, "ignore_eos": True, **params}
    return engine.add(
        GenerationRequest(
            np.array(prompt, np.int32), by(decode), SamplingParams(**values), priority=priority,
            deadline=deadline, salt=salt,
        )
    )  # fmt: skip


def finish(engine: Engine, steps: int = 2000) -> None:
    """Run steps until all requests end; pages must be accounted for after every step."""
    while engine.busy:
        engine.step()
        engine.check()
        steps -= 1
        assert steps > 0, "no progress"
    assert [pool.held for pool in engine.pools.values()] == [0] * len(engine.pools)


def served(
    decode: Callable[[Any], Steps] = plainly,
    *more: Any,
    engine: Engine | None = None,
    **params: Any,
) -> LiveSequence:
    """Run one request alone on an engine to its end, and return its sequence."""
    engine = engine or toy_engine()
    sequence = add(engine, decode, *more, **params)
    finish(engine)
    return sequence


def served_beside_another(
    decode: Callable[[Any], Steps], engine: Engine | None = None
) -> LiveSequence:
    """Run a request to its end beside a plain request, whose output must not change."""
    engine = engine or toy_engine()
    sequence, neighbour = add(engine, decode), add(engine)
    finish(engine)
    assert neighbour.output == greedy()
    return sequence


def greedy(
    prompt: Sequence[int] = LOOP, count: int = 12, toy: ToyBackend | None = None
) -> list[int]:
    """Return the greedy continuation, straight from the toy's definition."""
    toy, tokens = toy or ToyBackend(), list(prompt)
    for _ in range(count):
        tokens.append(int(toy.plain_logits(np.array(tokens)).argmax()))
    return tokens[len(prompt) :]


class ToyText:
    """A detokeniser in which each token is a letter that is held back by one token."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token: int) -> str:
        piece, self._held = self._held, letter(token)
        return piece

    def flush(self) -> str:
        piece, self._held = self._held, ""
        return piece
