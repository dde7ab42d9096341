"""Saved adapters can be read and merged; other files are refused."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.adapter import (
    Adapter,
    Facts,
    adapter_shapes,
    merge,
    merge_file,
    read_adapter,
    save_adapter,
    unused_token,
)
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.tiny import tiny_checkpoint

FACTS = Facts("tiny-llama", rank=3, block_length=4, mask_token=95, shift=True)


def base(kind: str = "llama", **changes: object) -> Checkpoint:
    config, weights = tiny_checkpoint(kind)
    return Checkpoint(config.altered(**changes), weights, None, None, "nowhere")


CONFIG = base().config


def made(facts: Facts = FACTS) -> Adapter:
    random = np.random.default_rng(0)
    shapes = adapter_shapes(CONFIG, facts.rank)
    return Adapter(facts, {n: random.standard_normal(s).astype("f2") for n, s in shapes.items()})


@pytest.fixture
def path(tmp_path) -> Path:
    save_adapter(tmp_path / "a.safetensors", made())
    return tmp_path / "a.safetensors"


def rewritten(path: Path, change) -> None:
    """Change the header of the file in place."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def test_a_file_comes_back_and_is_merged(path):
    adapter, model = read_adapter(path, CONFIG), base()
    assert adapter.facts == FACTS
    assert os.listdir(path.parent) == [path.name]
    merged = merge_file(model, path)
    c = merged.config
    assert (c.attention, c.block_length, c.mask_token, c.shift) == ("block", 4, 95, True)
    assert c.name != model.config.name
    for name, tensor in model.weights.items():
        wanted = tensor.float32().astype(np.float64)
        if f"{name}.a" in adapter.tensors:
            a, b = (adapter.tensors[f"{name}.{part}"].astype(np.float64) for part in "ab")
            wanted = wanted + b @ a
        elif name == "embed":
            wanted = np.concatenate([wanted[:95], adapter.tensors["mask"][None]])
        np.testing.assert_allclose(merged.weights[name].float32(), wanted, rtol=1e-5, atol=1e-5)
    assert sum(f"{name}.a" in adapter.tensors for name in model.weights) == 14  # 7 in each layer
    for name, tensor in tiny_checkpoint("llama")[1].items():
        assert np.array_equal(model.weights[name].float32(), tensor.float32())


@pytest.mark.parametrize("size", [0, 4, 8, 20, 300, -4, -1])
def test_truncated(path, size):
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InvalidModel, match="adapter"):
        read_adapter(path, CONFIG)


@pytest.mark.parametrize(
    "facts",
    [{"rank": 0}, {"rank": 4}, {"rank": True}, {"rank": 1 << 60}, {"rank": "3"},
     {"block_length": 0}, {"block_length": 1e9}, {"mask_token": 96}, {"mask_token": -1},
     {"mask_token": 0}, {"shift": 1}, {"base": None}, {"base": "x" * 5000}, {"more": 1}, 7, None],
)  # fmt: skip
def test_facts_that_do_not_fit(path, facts):
    def change(header):
        given = {**asdict(FACTS), **facts} if isinstance(facts, dict) else facts
        header["__metadata__"]["facts"] = json.dumps(given)

    rewritten(path, change)
    with pytest.raises(InvalidModel, match="adapter"):
        read_adapter(path, CONFIG)


def renamed(header):
    header["layers.9.q.a"] = header.pop("layers.0.q.a")


def turned(header):
    header["layers.0.q.a"]["shape"].reverse()


def wider(header):
    header["layers.0.q.a"]["dtype"] = "BF16"


def unsigned(header):
    del header["__metadata__"]


def other_kind(header):
    header["__metadata__"]["paradecode"] = "acceptance head 1"


def nested(header):
    header["__metadata__"]["facts"] = "[" * 100_000


@pytest.mark.parametrize("change", [renamed, turned, wider, unsigned, other_kind, nested])
def test_headers_that_lie(path, change):
    rewritten(path, change)
    with pytest.raises(InvalidModel, match="adapter"):
        read_adapter(path, CONFIG)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(path, value):
    data = bytearray(path.read_bytes())
    data[-2:] = np.float16(value).tobytes()
    path.write_bytes(data)
    with pytest.raises(InvalidModel, match="NaN"):
        read_adapter(path, CONFIG)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no tensors here")
    for bad in (
        tmp_path,
        tmp_path / "none",
        tmp_path / "pipe",
        tmp_path / "text",
        Path("a" * 5000),
    ):
        with pytest.raises(InvalidModel, match="adapter"):
            read_adapter(bad, CONFIG)
    with pytest.raises(InvalidInput, match="OUTPUT"):
        save_adapter(tmp_path / "none" / "a.safetensors", made())


def test_models_it_is_not_for(path):
    with pytest.raises(InvalidModel, match="another model"):
        merge_file(base(intermediate_size=97), path)
    for kind in ("llada", "mistral"):
        with pytest.raises(InvalidModel, match="dense causal"):
            merge(base(kind), made())
    with pytest.warns(UserWarning, match="trained for tiny-llama, not a-sibling"):
        merge_file(base(name="a-sibling"), path)


def test_the_default_models_mask_is_a_token_that_nothing_uses(default_model):
    token = unused_token(default_model)
    assert default_model.tokenizer.token(token) == "<empty_output>"
    padded = replace(default_model, config=replace(default_model.config, vocab_size=50_000))
    assert unused_token(padded) == default_model.tokenizer.vocab_size
    masked = replace(default_model, config=replace(default_model.config, mask_token=7))
    assert unused_token(masked) == 7


def test_a_rank_of_32_for_the_default_model_takes_20_megabytes(default_model):
    shapes = adapter_shapes(default_model.config, 32).values()
    size = 2 * sum(int(np.prod(shape)) for shape in shapes)
    assert 19e6 < size < 20e6
