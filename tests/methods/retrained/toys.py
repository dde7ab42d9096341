"""A toy model with a placeholder token, requests to it, and checks that several methods share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from engines import served
from paradecode import LLM
from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.models.catalogue import open_model
from paradecode.testing.cases import PROMPTS
from paradecode.testing.harness import Bench, Job, Run, Subject, limits_of
from paradecode.testing.machines import CONTEXT, KINDS, Kind
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

Factory = Callable[[Kind], Mapping[str, Backend]]
MASK = 28
TEXTS = (*PROMPTS, (9, 8, 7))
PARAMS = (
    SamplingParams(max_tokens=24), SamplingParams(max_tokens=17, temperature=0.9, seed=5),
    SamplingParams(max_tokens=9, temperature=1.2, top_k=9, seed=6),
)  # fmt: skip


class Silent(ToyBackend):
    """A toy that never predicts the placeholder by itself, so plain decoding needs no ban."""

    def head(self, states, tokens):
        logits = super().head(states, tokens)
        logits[:, MASK] = -30.0
        return logits


def toy(kind: Kind = KINDS[0], made: type[ToyBackend] = ToyBackend) -> dict[str, Backend]:
    """Create a toy whose tokens are often surprising, so that placeholders differ."""
    return {TARGET: made(toy_config(29, CONTEXT, masked=True), surprise=900)}


def silent(kind: Kind) -> dict[str, Backend]:
    return toy(kind, Silent)


def outputs(spec: str, factory: Factory, batch: int, jobs: Sequence[Job]) -> list[LiveSequence]:
    """Serve the requests in an engine that runs ``batch`` of them at the same time."""
    known = parse(spec)
    run = Run("own", Subject(spec, known, known.guarantee), Bench(KINDS[0], factory))
    return run.serve(jobs, limits_of(batch=batch, step_tokens=64))


def requests() -> list[Job]:
    return [Job(tuple(map(int, text)), params) for text in TEXTS for params in PARAMS]


def decoded(
    engine: Engine, prompt: Sequence[int], spec: str, params: SamplingParams,
    resume: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    (sequence,) = served(engine, [(spec, prompt, params)], resume=tuple(resume))
    return list(sequence.output)


def check_rows_are_its_own(spec: str, factory: Factory, jobs: Sequence[Job]) -> None:
    """Check that other methods do not read the rows that this method has cached for a text."""

    def engine() -> Engine:
        return Engine(factory(KINDS[0]), limits_of(), LetterText)

    used = engine()
    for job in jobs:
        text = [*job.prompt, *decoded(used, job.prompt, spec, job.params)]
        plain = [decoded(one, text, "greedy", job.params) for one in (used, engine())]
        assert plain[0] == plain[1]


def check_resumed(spec: str, factory: Factory, jobs: Sequence[Job], cached: bool = False) -> None:
    """Check that another worker continues a text as the first worker would have done.

    Args:
        cached: whether plain decoding has already cached rows of the text on the other worker.
    """
    for job, sequence in zip(jobs, outputs(spec, factory, 1, jobs), strict=True):
        for begun in (1, len(sequence.output) // 2):
            engine = Engine(factory(KINDS[0]), limits_of(), LetterText)
            resume = sequence.output[:begun]
            if cached:
                decoded(engine, [*job.prompt, *resume], "greedy", job.params)
            assert decoded(engine, job.prompt, spec, job.params, resume) == sequence.output


def check_refused(method: str, refused: Mapping[Any, str]) -> None:
    """Check the error for each file of a trained part; ``refused`` maps a path to its message.

    The path replaces ``{}`` in ``method``.
    """
    with LLM("paradecode/tiny-autoregressive", threads=1) as llm:
        for path, fix in refused.items():
            with pytest.raises(InvalidInput, match=fix):
                llm.complete("copy: Ana", decoder=method.format(path), max_tokens=2)


def in_float64(model: str) -> Any:
    """Return a float64 model whose layers a test calls one by one."""
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.model import Transformer

    base = open_model(model)
    return Transformer(base.config, base.weights, torch.float64, torch.device("cpu"))


def attend_causally(layer: int, q: Any, k: Any, v: Any) -> Any:
    import torch

    from paradecode.backends.torch.model import attention

    return attention(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril())
