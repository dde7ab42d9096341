"""Sends requests to an engine, and checks its page accounts after every step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse

Job = tuple[str | Mapping[str, Any] | Callable[[], Any], Sequence[int], Any]
"""A method, a prompt, and its parameters, which may be a mapping."""


def asked(engine: Engine, *jobs: Job, **more: Any) -> list[LiveSequence]:
    """Run all requests in one batch, and return them when each has ended or failed."""
    live = [
        engine.add(
            GenerationRequest(
                np.array(prompt, np.int32), method if callable(method) else parse(method),
                params if isinstance(params, SamplingParams) else SamplingParams(**params), **more,
            )
        )
        for method, prompt, params in jobs
    ]  # fmt: skip
    while engine.busy:
        engine.step()
        engine.check()
    return live


def served(engine: Engine, jobs: Iterable[Job], **more: Any) -> list[LiveSequence]:
    """Run all requests in one batch like :func:`asked`, and raise the first error."""
    live = asked(engine, *jobs, **more)
    for sequence in live:
        if sequence.error is not None:
            raise sequence.error
    return live
