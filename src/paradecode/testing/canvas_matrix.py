"""Try every policy with every block rule and cache on every type of attention.

python -m paradecode.testing.canvas_matrix bench/results/diffusion_matrix.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.parts import known
from paradecode.methods.specs import Spec, methods, parse
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode.testing.trained_parts import settings

ATTENTION: Mapping[str, Mapping[str, Any]] = {
    "full": {"attention": "full"},
    "shift": {"attention": "full", "shift": True},
    "block": {"attention": "block", "block_length": 4},
    "block-shift": {"attention": "block", "block_length": 4, "shift": True},
    "causal": {"masked": True, "shift": True},
}
"""Every type of model that can decode a canvas, as settings of ``toy_config``."""
PROMPTS = ((5, 6, 7, 28, 9, 4, 1), tuple(4 + (3 * i * i + i) % 24 for i in range(37)))
"""Two prompts.

The first one contains the id of the mask token, which is an ordinary token there.
"""


def policies() -> list[str]:
    """Return the names of the package's policies that are methods."""
    return sorted(
        name
        for name in known("policy").keys() & methods().keys()
        if methods()[name].build.__module__.startswith("paradecode.")
    )


def combinations() -> Iterator[tuple[str, str, str]]:
    """Yield all combinations of policy, block rule and cache."""
    return product(policies(), known("blocks"), known("cache"))


def spec(policy: str, blocks: str, cache: str) -> str:
    """Return the spec of a method with these parts. Trained parts get random weights."""
    own = settings().get(policy, "")
    return f"{policy}({own}blocks={blocks},cache={cache},block_length=8)"


def refusal(policy: str, blocks: str, cache: str) -> str | None:
    """Return why the registry refuses the combination for every model, or None if it does not."""
    try:
        parse(spec(policy, blocks, cache))
    except InvalidInput as error:
        return error.fix
    return None


def run() -> dict[str, Any]:
    """Decode with every combination, once with two requests together and once with one alone.

    Returns:
        The names, the number of cases that ran, and for each other case its policy, block rule,
        cache, attention (or ``any``) and the reason.

    Raises:
        AssertionError: if a case fails in another way than by a refusal, or if the batch changes a
            text.
    """
    refused: list[list[str]] = []
    ran = 0
    for parts in track([*combinations()], "decoding"):
        reason = refusal(*parts)
        if reason is not None:
            refused.append([*parts, "any", reason])
            continue
        for kind in ATTENTION:
            reason = _decode(parse(spec(*parts)), kind)
            ran += reason is None
            if reason is not None:
                refused.append([*parts, kind, reason])
    return {
        "policies": policies(),
        "blocks": [*known("blocks")],
        "caches": [*known("cache")],
        "attention": [*ATTENTION],
        "ran": ran,
        "refused": refused,
    }


def _decode(method: Spec, kind: str) -> str | None:
    """Return why the method cannot decode with such a model, or None if it can."""
    together = _serve(method, kind, PROMPTS)
    (alone,) = _serve(method, kind, PROMPTS[:1])
    for sequence in together:
        if isinstance(sequence.error, InvalidInput):
            return sequence.error.fix
        assert sequence.error is None, (method, kind, sequence.error)
    assert together[0].output == alone.output, (method, kind)
    return None


def _serve(method: Spec, kind: str, prompts: tuple[tuple[int, ...], ...]) -> list[LiveSequence]:
    backend = ToyBackend(toy_config(**ATTENTION[kind]), surprise=700)
    engine = Engine({"target": backend}, Limits(kv_tokens=4096), LetterText)
    params = SamplingParams(max_tokens=9, ignore_eos=True, seed=3)
    sequences = [
        engine.add(GenerationRequest(np.array(prompt, np.int32), method, params))
        for prompt in prompts
    ]
    while engine.busy:
        engine.step()
    return sequences


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(run(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
