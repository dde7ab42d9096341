"""The published models' own code: what it computed is what we compute (see fixtures/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canvases import run
from hub_folders import FAMILIES, tiny_model, write_folder

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import (
    Attend,
    BlockCausal,
    Decoder,
    Forward,
    Steps,
    Store,
    TokenSequence,
)
from paradecode.models.safetensors_dir import read_weights

FIXTURES = {
    name: json.loads((Path(__file__).parent / "fixtures" / f"{name}.json").read_text())
    for name in FAMILIES
}
RELEASED_FACTOR = "murilogustineli/Fast-dLLM@76e92ba llada/generate.py: generate"
RUNS = [
    (name, at)
    for name in FAMILIES
    for at, one in enumerate(FIXTURES[name]["runs"])
    if one["sampler"] != RELEASED_FACTOR
]
BACKENDS = ("torch", "native")
TOLERANCE = {"torch": 2e-6, "native": 2e-4}
"""Absolute, of logits up to 16: half a unit of their last place in float32, and fp32 arithmetic."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    for name, folder in made.items():
        write_folder(name, folder)
    return made


def backend_of(kind: str, folder: Path) -> Backend:
    if kind == "torch":
        pytest.importorskip("torch")
        return open_backend("torch", *read_weights(folder), dtype="fp64", threads=1)
    return NativeBackend(*read_weights(folder), dtype="f32", kv_dtype="f32", threads=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_the_hub_says_all_that_is_to_know(family: str, folders) -> None:
    config, weights = read_weights(folders[family])
    wanted, values = tiny_model(family)
    for field in ("attention", "block_length", "mask_token", "shift", "qkv_bias", "qk_norm"):
        assert getattr(config, field) == getattr(wanted, field), field
    assert config.tensors() == wanted.tensors()
    assert config.rope == wanted.rope
    assert all(np.array_equal(weights[n].float32(), v.float32()) for n, v in values.items())


class OneForward(Decoder):
    """Asks for the logits of some rows of some tokens, none of them cached, and ends."""

    def __init__(self, tokens: list[int], rows: list[int]) -> None:
        self.tokens, self.rows = np.array(tokens, np.int32), np.array(rows, np.int32)

    def decode(self, seq: TokenSequence) -> Steps:
        about = seq.about()
        attend = {"causal": Attend.CAUSAL, "full": Attend.FULL}.get(about.attention)
        reply = yield Forward(
            self.tokens,
            attend=attend or BlockCausal(about.block_length),
            store=Store.NONE,
            positions=np.arange(len(self.tokens), dtype=np.int32),
            visible=np.zeros(0, np.int32),
            logits=self.rows,
        )
        every = np.tile(np.arange(about.vocab_size), (len(self.rows), 1))
        self.logits = reply.logits.gather(every)
        seq.fill([1], None, [], "stop")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, kind: str, folders) -> None:
    expected = FIXTURES[family]["logits"]
    asked = OneForward(expected["tokens"], expected["rows"])
    run(backend_of(kind, folders[family]), lambda: asked)
    wanted = np.array(expected["values"])
    assert wanted.std() > 2
    np.testing.assert_allclose(asked.logits, wanted, rtol=0, atol=TOLERANCE[kind])


def trajectory(sequence: Any) -> list[list[list[int]]]:
    """The pairs [offset, token] that each forward decided."""
    steps = [step.canvas for step in sequence.trace]
    return [[list(pair) for pair in zip(s.offsets, s.tokens, strict=True)] for s in steps]


@pytest.mark.first(60)
@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("family", "at"), RUNS)
def test_the_sampler_token_by_token(family: str, at: int, kind: str, folders) -> None:
    expected = FIXTURES[family]["runs"][at]
    backend = backend_of(kind, folders[family])
    made = run(backend, expected["method"], expected["prompt"], expected["max_tokens"])
    assert trajectory(made) == expected["steps"]


def test_the_released_factor_rule_commits_the_last_token_although_it_fails(folders) -> None:
    """Ours stops before it: up to there the trajectories are one."""
    runs = [one for one in FIXTURES["llada"]["runs"] if one["sampler"] == RELEASED_FACTOR]
    assert runs
    for released in runs:
        backend = backend_of("native", folders["llada"])
        made = run(backend, released["method"], released["prompt"], released["max_tokens"])
        pairs = list(zip(trajectory(made), released["steps"], strict=False))
        at = next(index for index, (own, other) in enumerate(pairs) if own != other)
        own, other = pairs[at]
        assert len(other) == len(own) + 1
        assert all(pair in other for pair in own)
        assert len(other) == made.trace[at].canvas.window[1] - sum(
            len(step) for step in released["steps"][:at]
        )
