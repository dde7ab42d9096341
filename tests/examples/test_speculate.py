"""The example draws from the model's own distribution, which is computed over all its choices."""

from collections import defaultdict
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paradecode import LLM
from paradecode.core.logits import ArrayLogits, Warp
from repository import ROOT
from tools.structure import code_lines

FILE = ROOT / "examples" / "speculate_in_50_lines.py"
PROMPT = [1, 2, 1, 2, 0, 1, 2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("speculate", FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Hashed:
    """A model with three tokens, whose logits are a function of the text up to each row."""

    def __init__(self) -> None:
        self.stored: dict[int, int] = {}

    def reserve(self, pages: int) -> None:
        pass

    def forward(self, spans: Sequence[Any]) -> list[Any]:
        (span,) = spans
        self.stored |= dict(zip(span.slots.tolist(), span.tokens.tolist()))
        texts = [tuple(self.stored[s] for s in range(p + 1)) for p in span.positions[span.logits]]
        return [SimpleNamespace(logits=ArrayLogits(np.stack([logits_of(t) for t in texts])))]


def logits_of(text: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(text).normal(0, 1.5, 3)


class Branch:
    """Makes the choices of one walk: first those of ``script``, then the first possible one."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.made, self.open = list(script), [], []
        self.weight = 1.0

    def __call__(self, count: int, p: Any) -> int:
        at = len(self.made)
        possible = [k for k in range(count) if p[k] > 0]
        taken = self.script[at] if at < len(self.script) else possible[0]
        if at >= len(self.script):
            self.open += [[*self.made, k] for k in possible[1:]]
        self.made.append(taken)
        self.weight *= float(p[taken])
        return taken


def law(example: ModuleType, count: int, warp: Warp, first: Sequence[int]) -> dict[Any, float]:
    found: dict[Any, float] = defaultdict(float)
    scripts: list[list[int]] = [[]]
    while scripts:
        branch, tokens = Branch(scripts.pop()), [*first]
        example.decode(Hashed(), tokens, len(first) + count, {9}, warp, branch)
        found[tuple(tokens[len(first) :])] += branch.weight
        scripts += branch.open
    return found


def plain_law(count: int, warp: Warp, first: Sequence[int]) -> dict[Any, float]:
    found = {}
    for text in product(range(3), repeat=count):
        weight = 1.0
        for at, token in enumerate(text):
            rows = ArrayLogits(logits_of((*first, *text[:at]))[None])
            weight *= rows.probabilities(warp)[0, token]
        found[text] = weight
    return found


def test_its_law_is_that_of_plain_sampling(example: ModuleType) -> None:
    warp = Warp(0.8)
    found, expected = law(example, 3, warp, PROMPT), plain_law(3, warp, PROMPT)
    assert len(example.draft(PROMPT)) > 1
    assert sum(found.values()) == pytest.approx(1)
    for text, weight in expected.items():
        assert found[text] == pytest.approx(weight, abs=1e-9)


def test_a_wrong_residual_is_noticed(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FILE.read_text("utf-8")
    line = "p[slice(0) if token is None else token] = 0"
    assert line in source
    wrong = ModuleType("wrong")
    exec(compile(source.replace(line, "pass"), "wrong.py", "exec"), wrong.__dict__)
    found, expected = law(wrong, 3, Warp(0.8), PROMPT), plain_law(3, Warp(0.8), PROMPT)
    assert max(abs(found[text] - expected[text]) for text in expected) > 0.01


def test_greedily_it_says_what_the_engine_says(example: ModuleType) -> None:
    name = "paradecode/tiny-autoregressive"
    model, choose = example.open_model(name), np.random.default_rng(0).choice
    prompt = model.tokenizer.encode("sort: Ben Sam Art Ben Sam Art")
    with LLM(name, decoder=None) as llm:
        expected = llm.complete([prompt], max_tokens=12, ignore_eos=True)[0].token_ids
    tokens, backend = [*prompt], example.open_backend("auto", model.config, model.weights)
    forwards = example.decode(backend, tokens, len(prompt) + 12, (), Warp(), choose)
    backend.close()
    assert tokens[len(prompt) :] == [*expected]
    assert forwards <= 12


def test_it_has_at_most_fifty_lines_of_code() -> None:
    assert code_lines(FILE) <= 50
