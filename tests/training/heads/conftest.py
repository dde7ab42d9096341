"""Fixtures for tests of heads: a tiny model, tasks that it can do, and its answers to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import pytest

from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode_lab.measure.tasks.tasks import BY_NAME

if TYPE_CHECKING:
    from paradecode_lab.training.heads.data import HeadData
    from paradecode_lab.training.heads.texts import TextSource


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    from head_training import MODEL  # Needs PyTorch.

    with LLM(MODEL, threads=1, limits=Limits(prefix_cache=False)) as llm:
        yield llm


@pytest.fixture(scope="package")
def source(tmp_path_factory: pytest.TempPathFactory) -> TextSource:
    """Prompts of tasks that the model can do, so that a head can learn its answers."""
    from paradecode_lab.training.heads.texts import TextSource

    random, file = Random(0), tmp_path_factory.mktemp("prompts") / "tasks.jsonl"
    drawn = [BY_NAME[name].draw(random, held_out=False).prompt
             for _ in range(56) for name in ("json", "word-problem")]  # fmt: skip
    file.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in drawn))
    return TextSource(prompts=(str(file),), own=0, max_tokens=32, length=96, sampled=0.3)


@pytest.fixture(scope="package")
def data(llm: LLM, source: TextSource, tmp_path_factory: pytest.TempPathFactory) -> HeadData:
    from paradecode_lab.training.heads.data import make_data

    made = make_data(llm, source, tmp_path_factory.mktemp("data"), lambda *_: None)
    made.features(llm, tuple(range(llm.config.layers)), 1e9, lambda *_: None)  # Serve all heads.
    return made
