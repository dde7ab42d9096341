"""Heads and draft models that gain no time read few prompts, because reading counts as a cost."""

import math
from typing import Any

import numpy as np
import pytest
from driving import finish
from one_by_one import CONFIG, add, both

from paradecode.core.head import DraftPace, HeadDraft
from paradecode.engine import engine as engine_module
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.draft_heads import random_head

pytestmark = pytest.mark.usefixtures("same_costs")
CURVE = CostCurve((1, 32), (20,), ((1e-3, 2e-3),))
ROWS, TOKENS, REQUESTS = 60, 40, 12


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[HeadDraft]:
    """Record drafts that read a prompt, with fixed times for a prompt row and for a draft.

    A prompt row takes a fifth of a step, and a draft takes a third.
    """
    asked: list[HeadDraft] = []
    run = engine_module.drafts_of

    def seen(backend: Any, head: Any, given: Any) -> Any:
        asked.extend(draft for draft in given if len(draft.tokens) >= ROWS - 1)
        return run(backend, head, given)

    def book(self: DraftPace, seconds: float, levels: int) -> None:
        self.draft, self.level = 3e-4, 1e-4

    monkeypatch.setattr(engine_module, "drafts_of", seen)
    monkeypatch.setattr(DraftPace, "book", book)
    monkeypatch.setattr(DraftPace, "row", property(lambda self: 2e-4, lambda self, seconds: None),
                        raising=False)  # fmt: skip
    return asked


def outputs(engine: Engine, spec: str, batch: int) -> list[list[int]]:
    random, found = np.random.default_rng(3), []
    while len(found) < REQUESTS:
        prompts = random.integers(1, CONFIG.vocab_size, (batch, ROWS)).tolist()
        made = [
            add(engine, spec, text, max_tokens=TOKENS, ignore_eos=True, seed=1) for text in prompts
        ]
        finish(engine)
        found += [one.output for one in made]
    return found


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", ["eagle", "clover", "kangaroo"])
def test_a_hopeless_head_reads_few_prompts(kind, batch, tmp_path, read):
    """A head that gains no time reads only the first prompts of a batch, or none.

    Alone, it reads none before other requests have saved the time for one.
    """
    spec = f"{kind}(head='{random_head(kind, CONFIG, tmp_path)}')"
    for engine in both(curve=CURVE, kv_tokens=8192):
        read.clear()
        assert outputs(engine, spec, batch) == outputs(engine, "greedy", batch)
        one = 28 * 2e-4 * 32 / 1e-3  # Steps that make up for a prompt.
        least = 0 if (kind, batch) == ("kangaroo", 4) else 1  # Its drafts take the most.
        assert least <= len(read) <= batch + math.ceil(REQUESTS * TOKENS / one)


def test_a_hopeless_draft_model_reads_few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in both(curve=CURVE, draft=tiny_checkpoint("llama", seed=9)):
        engine.load.others["draft"] = CostCurve((1, 32), (20,), ((3e-4, 6e-3),))
        wide, forward = [], engine.models["draft"].forward

        def seen(spans: Any, forward: Any = forward, wide: list[int] = wide) -> Any:
            wide.extend(len(span.positions) for span in spans if len(span.positions) >= ROWS)
            return forward(spans)

        monkeypatch.setattr(engine.models["draft"], "forward", seen)
        assert outputs(engine, "draft-model", 1) == outputs(engine, "greedy", 1)
        assert 1 <= len(wide) <= 3
