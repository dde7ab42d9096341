"""Heads whose extra rows pass the target's layers must draft as they were trained."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paradecode.backends import open_backend
from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import Backend, Span, SpanResult
from paradecode.core.head import HeadDraft, Memory
from paradecode.models.catalogue import open_model
from paradecode.models.heads import read_head
from paradecode.testing.network_reference import apply_network

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from head_training import MODEL, PLAN, built, learns, rows_of, training

from paradecode_lab.training.heads.training import HEAD

NOWHERE = np.empty(0, np.int32)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target() -> Backend:
    """Return the target as a backend, to run single rows on it."""
    model = open_model(MODEL)
    backend = open_backend("torch", model.config, model.weights, dtype="fp32", threads=1)
    backend.reserve(1)
    return backend


def learned(llm, data, folder: Path, method: str, rate: float, steps: int = 8, **sizes):
    """Train a head of 3 levels, and check that decoding with it gives plain decoding's tokens.

    Returns:
        The head in the folder, the ids of the tokens that can be drafted, and the logits of
        training with these tensors, [3, 5, ids], at the first five tokens of the first text's
        answer.
    """
    plan = replace(PLAN, steps=steps, rate=rate)
    trainer = training(llm, data, method, plan, **{"inner": 0, "vocabulary": 512, **sizes})
    learns(trainer, folder, 0.05)
    stored, text = read_head(folder / HEAD), data.texts[0]
    with torch.no_grad():
        for name, kept in trainer.head.parameters.items():
            kept.copy_(torch.from_numpy(stored.tensors[name]))
        rows = trainer.batch([text], trainer.features.of([0])).rows
        made = torch.stack([level[:5] for level in trainer.head.levels(rows, 3)])
    prompt = [text.tokens[: text.start].tolist()]
    llm.engine.load.curve = None  # On a busy machine no row would seem worth its cost.
    spec = f"{method}(head='{folder / HEAD}',budget=fixed)"
    plain, drafted = (llm.complete(prompt, decoder=each, max_tokens=24)[0] for each in (None, spec))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0
    assert drafted.stats.rows > plain.stats.rows
    return stored, np.flatnonzero(trainer._numbers >= 0), made.numpy()


def forward(target: Backend, places: int, **rest) -> SpanResult:
    """Run causal rows without storing them, and return the logits of the last three."""
    at = np.arange(places, dtype=np.int32)
    kept = np.full(places, -1, np.int32)
    return target.forward([Span(NOWHERE, at, at, kept, 0, at[-3:], **rest)])[0]


@pytest.mark.wide
def test_prompt_tokens_guess_in_the_engine_as_they_were_trained(llm, data, target, tmp_path):
    """Level i of training must equal what the target predicts at prompt token i after the text."""
    stored, ids, made = learned(llm, data, tmp_path, "ppd", 0.015, steps=16)
    prompts, text = stored.tensors["prompt_embeddings"], data.texts[0]
    embed = open_model(MODEL).weights["embed"].float32()
    for cut in (0, 4):
        rows = np.concatenate([embed[text.tokens[: text.start + cut]], prompts])
        said = forward(target, len(rows), embeddings=rows.astype(np.float32)).logits
        assert np.allclose(made[:, cut], said.gather(np.tile(ids, (3, 1))), atol=2e-2)


@pytest.mark.first(1)
@pytest.mark.parametrize("taps", [(), (0, 1, 1)])
def test_pseudo_states_guess_in_the_engine_as_they_were_trained(taps, llm, data, target, tmp_path):
    """Level i of training must equal what the target's last layers predict at pseudo state i.

    The reference runs layer by layer, without a head.
    """
    stored, ids, made = learned(llm, data, tmp_path, "hidden-transfer", 0.01, taps=taps)
    matrices = [stored.tensors[f"transfer.{level}.weight"] for level in range(3)]
    assert stored.taps == (taps or (2 * llm.config.layers // 3 - 1,) * 3)
    text, embed = data.texts[0], open_model(MODEL).weights["embed"].float32()
    for cut in (0, 4):
        known = text.start + cut
        states = embed[text.tokens[:known]]
        for layer in range(llm.config.layers):
            entering = [m @ states[known - 1] for m, tap in zip(matrices, stored.taps)
                        if tap == layer - 1]  # fmt: skip
            states = np.concatenate([states, *(row[None] for row in entering)])
            done = forward(target, len(states), hidden=(layer,), layers=(layer,), resume=states)
            states = done.hidden[layer]
        assert np.allclose(made[:, cut], done.logits.gather(np.tile(ids, (3, 1))), atol=2e-2)


@pytest.mark.wide
@pytest.mark.parametrize("taps", [(), (0,)])
def test_masks_guess_in_the_engine_as_they_were_trained(taps, llm, data, tmp_path):
    """The written head must draft in the engine, level by level, what was trained."""
    _, ids, made = learned(llm, data, tmp_path, "flexdraft", 0.005, inner=32, taps=taps)
    head, text = built(llm, tmp_path), data.texts[0]
    states, known = rows_of(data, llm, 0, head.taps), text.tokens[1:].astype(np.int64)
    shares = torch.from_numpy(made).softmax(-1).numpy()
    for cut in (0, 4):
        end = text.start + cut
        asked = HeadDraft(Memory(), states[:end], known[:end], 0, 3, 1, 3)
        (tree,) = run_head(head, [asked], apply_network)
        assert tree.tokens.tolist() == ids[shares[:, cut].argmax(-1)].tolist()
        assert np.allclose(tree.estimates, shares[:, cut].max(-1), atol=2e-2)
