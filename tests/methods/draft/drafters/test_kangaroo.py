"""Tests of Kangaroo against a plain implementation without cache and tree."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import PROMPT, chain_of, check_chains, deep, head_engine, serve, states_of

from by_hand import attended, normed, softmax, stored, turned
from paradecode.backends import open_backend
from paradecode.core.errors import InvalidModel
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import Sizes, random_head

LAYERS, EXIT, DEPTH, SURE = 6, 3, 6, 0.2
CONFIG, WEIGHTS = deep(LAYERS)
engine = partial(head_engine, (CONFIG, WEIGHTS))
WIDE, SIZE, HEADS, GROUPS = CONFIG.hidden_size, 8, 4, 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write an adapter that changes the exit's state a little and uses the target's LM head."""
    random_head("kangaroo", CONFIG, tmp_path, sizes=Sizes(HEADS, GROUPS, SIZE))
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("verifier_norm.weight", "verifier_lm_head.weight", "d2t"):
        tensors.pop(name)
    tensors["norm.weight"] = WEIGHTS["norm"].float32()
    tensors["layers.0.self_attn.o_proj.weight"] *= 0.3
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


class Paper:
    """Algorithm 1 of the paper: greedy, one sequence."""

    def __init__(self, folder: Path) -> None:
        self.p = stored(folder)
        self.backend = open_backend("torch", CONFIG, WEIGHTS, dtype="fp64", threads=1)
        self.backend.reserve(1)

    def exit_states(self, tokens: Sequence[int]) -> np.ndarray:
        return states_of(self.backend, tokens, (EXIT - 1,))[0]

    def adapter(self, states: np.ndarray) -> np.ndarray:
        """Return the probabilities of the token after the last row."""
        x, last = normed(states, self.p["layers.0.input_layernorm.weight"]), len(states) - 1
        q, k, v = (
            (x @ self.p[f"layers.0.self_attn.{part}_proj.weight"].T).reshape(len(x), -1, SIZE)
            for part in "qkv"
        )
        queries, keys = turned(q[last], last), [turned(row, at) for at, row in enumerate(k)]
        groups = [head * GROUPS // HEADS for head in range(HEADS)]
        mixed = [attended(queries[head], [key[g] for key in keys], v[:, g])
                 for head, g in enumerate(groups)]  # fmt: skip
        state = states[last] + self.p["layers.0.self_attn.o_proj.weight"] @ np.concatenate(mixed)
        return softmax(WEIGHTS["head"].float32() @ normed(state, self.p["norm.weight"]))

    def draft(self, text: Sequence[int], room: int) -> list[int]:
        chances = lambda tokens: self.adapter(self.exit_states(tokens))  # noqa: E731
        return chain_of(chances, text, min(DEPTH, room), SURE)


def test_every_draft_is_the_papers_and_no_row_is_computed_twice(folder, head_drafts):
    paper, spec = Paper(folder), f"kangaroo(head='{folder}',sure={SURE},budget=fixed)"
    sequence, text, lengths = check_chains(engine(), spec, 40, EXIT, paper.draft)
    assert DEPTH in lengths
    assert len(lengths - {0, DEPTH}) > 1
    assert sequence.stats.accepted > 5
    verified = sum(len(step.tree) + 1 for step in sequence.trace if len(step.tree))
    # The adapter keeps a draft's rows of accepted tokens.
    states, end = paper.exit_states(text), 0
    for draft in head_drafts:
        assert draft.start <= end
        end = draft.start + len(draft.features)
    assert sum(len(draft.features) for draft in head_drafts) < verified + len(PROMPT)
    stays = {draft.start + n: row for draft in head_drafts for n, row in enumerate(draft.features)}
    assert all(np.allclose(stays[n], states[n], atol=1e-4) for n in range(max(stays)))


def test_the_second_exit_ends_a_draft(folder: Path) -> None:
    spec = "kangaroo(head='{}',sure={},budget=fixed)"
    lengths = []
    for sure in (0.0, 1.0):
        (sequence,) = serve(engine(), [spec.format(folder, sure)], ignore_eos=True)
        lengths.append({len(step.tree) for step in sequence.trace[1:-DEPTH]})
    assert lengths == [{DEPTH}, {1}]


def nothing(name: str) -> np.ndarray:
    return WEIGHTS[name].float32()


@pytest.mark.parametrize(("change", "field"), [
    (lambda said: said.pop("exit_layer"), "exit_layer"),
    (lambda said: said.update(exit_layer=0), "exit_layer"),
    (lambda said: said.update(exit_layer=LAYERS), "exit_layer"),
    (lambda said: said.update(exit_layer="2"), "exit_layer"),
])  # fmt: skip
def test_an_exit_that_is_none_is_refused(change: Any, field: str, folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    change(said)
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(InvalidModel, match=field):
        build_head(read_head(folder), CONFIG, nothing)
