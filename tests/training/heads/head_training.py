"""Helpers of the tests of heads: train one, and let the engine draft with it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paradecode.backends.heads.run import run_head
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.llm import LLM
from paradecode.models.catalogue import open_model
from paradecode.models.heads import HeadFile, build_head, read_head
from paradecode.testing.network_reference import apply_network
from paradecode_lab.training.heads.answers import EngineWriter
from paradecode_lab.training.heads.data import HeadData
from paradecode_lab.training.heads.features import Features
from paradecode_lab.training.heads.initial import OF_ROWS, HeadShape
from paradecode_lab.training.heads.texts import HeadText
from paradecode_lab.training.heads.training import (
    HEAD,
    HeadPlan,
    HeadTraining,
    RowTraining,
    layers_of,
)

MODEL = "paradecode/tiny-autoregressive"
PLAN = HeadPlan(steps=16, batch=4, rate=3e-3, averaging=0.9)
HELD = 32


def training(
    llm: LLM, data: HeadData, method: str = "eagle3", plan: HeadPlan = PLAN,
    before: HeadFile | None = None, **sizes: Any,
) -> HeadTraining:  # fmt: skip
    """Return the training of a small head of this method; no step has been done."""
    shape = HeadShape(method, **{"inner": 64, "vocabulary": 128, "levels": 3, **sizes})
    layers = layers_of(shape.tapped(llm.config), llm.config.layers)
    features = data.features(llm, layers, 1e9, lambda *_: None)
    kind = RowTraining if method in OF_ROWS else HeadTraining
    return kind(shape, plan, open_model(MODEL), features, HELD, before=before)


def learns(trainer: HeadTraining, folder: Path, more: float) -> None:
    """Train to the end, and check that the head has learned.

    Its share of right next tokens must rise by more than ``more``.
    """
    before = trainer.evaluate()
    assert trainer.run(folder, lambda: False, lambda *_: None)
    after = trainer.evaluate()
    assert after.levels[0] > before.levels[0] + more, (before, after)
    assert after.tokens_a_forward > before.tokens_a_forward
    assert after.rows == before.rows > 100


def built(llm: LLM, folder: Path) -> Head:
    """Return the head in the folder as the engine builds it."""
    weights = open_model(MODEL).weights
    return build_head(read_head(folder / HEAD), llm.config, lambda name: weights[name].float32())


def rows_of(data: HeadData, llm: LLM, number: int, taps: tuple[int, ...]) -> NDArray[Any]:
    """Return the features of a text as the engine gives them to a head."""
    wanted = tuple(sorted({tap % llm.config.layers for tap in taps}))
    kept = data.features(llm, wanted, 1e9, lambda *_: None)
    states = kept.of([number])[0].astype(np.float32)
    parts = dict(zip(kept.layers, np.split(states, len(kept.layers), axis=1)))
    return np.concatenate([parts[tap % llm.config.layers] for tap in taps], axis=1)


def drafts_alike(trainer: HeadTraining, llm: LLM, data: HeadData, folder: Path) -> float:
    """Check that the engine drafts the tokens that were trained, level by level.

    Returns:
        The largest difference between a token's probability in the draft and in training.
    """
    head, text, cut = built(llm, folder), data.texts[0], 3
    states, known = rows_of(data, llm, 0, head.taps), text.tokens[1:].astype(np.int64)
    place = text.start - 1 + cut
    memory = Memory()
    memory.recent = text.tokens[:1].astype(np.int64)
    asked = HeadDraft(memory, states[: place + 1], known[: place + 1], 0, 3, 1, 3)
    (tree,) = run_head(head, [asked], apply_network)
    drafted = tree.tokens.tolist()
    # The levels of training see the tokens of the text, so the text must continue as the draft
    # does.
    longer = HeadText(
        np.array([*text.tokens[: place + 2], *drafted, 0], np.int32), text.start, True
    )
    features = Features(EngineWriter(llm), [longer], trainer.features.layers, folder / "own", 0)
    own = trainer.batch([longer], features.of([0]))
    with torch.no_grad():
        made = trainer.head.levels(own.rows, 3)
    ids = head.to_target
    assert [int(ids[int(logits[cut].argmax())]) for logits in made] == drafted
    chances = [float(logits[cut].softmax(-1).max()) for logits in made]
    return float(np.abs(tree.estimates - chances).max())
