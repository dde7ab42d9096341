"""Files of the filter and of the joint sampler: what was saved comes back, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.decoders.diffusion.joint_layer import JointLayer, open_layer, shapes
from paradecode.decoders.diffusion.unmask_filter import UnmaskFilter, open_filter
from paradecode.decoders.registry import parse

KINDS = ("filter", "layer")
FACTS = {"vocab_size": 7, "hidden_size": 6, "width": 8, "heads": 2, "inner": 12}


def made(path: Path, kind: str, **changes: int) -> Path:
    random = np.random.default_rng(0)

    def tensor(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    if kind == "filter":
        UnmaskFilter(tensor(4, 3), tensor(3), tensor(3, 4), tensor(4)).save(path)
    else:
        facts = {**FACTS, **changes}
        JointLayer(facts, {n: tensor(*shape) for n, shape in shapes(FACTS).items()}).save(path)
    return path


def opened(path: Path, kind: str):
    return open_filter(str(path)) if kind == "filter" else open_layer(str(path))


def header_of(data: bytes) -> tuple[dict, bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewritten(path: Path, header: dict, body: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_what_was_saved_comes_back(tmp_path):
    trained = opened(made(tmp_path / "filter", "filter"), "filter")
    assert trained.block == 4
    assert trained.predict(np.zeros((2, 4))).shape == (2, 4)
    layer = opened(made(tmp_path / "layer", "layer"), "layer")
    assert dict(layer.facts) == FACTS
    states = np.ones((3, 6), np.float32)
    assert layer(np.arange(3), states, np.arange(3)).shape == (3, 6)
    assert sorted(os.listdir(tmp_path)) == ["filter", "layer"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 4, 8, 20, 300, -4, -1])
def test_truncated(tmp_path, kind, size):
    path = made(tmp_path / "part", kind)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InvalidInput, match=kind):
        opened(path, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(tmp_path, kind, value):
    path = made(tmp_path / "part", kind)
    header, body = header_of(path.read_bytes())
    rewritten(path, header, np.float32(value).tobytes() + body[4:])
    with pytest.raises(InvalidInput, match="NaN"):
        opened(path, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_other_shapes(tmp_path, kind):
    path = made(tmp_path / "part", kind)
    header, body = header_of(path.read_bytes())
    for name, entry in header.items():
        if name == "__metadata__" or len(entry["shape"]) < 2:
            continue
        turned = {**entry, "shape": [1, *entry["shape"]]}
        rewritten(path, {**header, name: turned}, body)
        with pytest.raises(InvalidInput, match="wrong shape"):
            opened(path, kind)
        rewritten(path, {**header, f"{name}x": header[name], name: None}, body)
        with pytest.raises(InvalidInput):
            opened(path, kind)


@pytest.mark.parametrize(
    ("name", "value"),
    [("block", 0), ("block", 5), ("block", True), ("width", 1 << 40), ("width", "3"),
     ("vocab_size", 8), ("hidden_size", -1), ("width", 6), ("heads", 3), ("heads", 8),
     ("inner", None)],
)  # fmt: skip
def test_facts_that_do_not_fit(tmp_path, name, value):
    for kind in KINDS:
        path = made(tmp_path / kind, kind)
        header, body = header_of(path.read_bytes())
        facts = json.loads(header["__metadata__"]["facts"])
        if name in facts:
            header["__metadata__"]["facts"] = json.dumps({**facts, name: value})
            rewritten(path, header, body)
            with pytest.raises(InvalidInput, match=kind):
                opened(path, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_such_file(tmp_path, kind):
    other = made(tmp_path / "other", "layer" if kind == "filter" else "filter")
    (tmp_path / "text").write_text("no tensors here")
    for path in (other, tmp_path, tmp_path / "none", tmp_path / "text", Path("a" * 5000)):
        with pytest.raises(InvalidInput, match=kind):
            opened(path, kind)
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidInput, match="regular"):
            opened(tmp_path / "pipe", kind)


def test_a_changed_file_is_read_again(tmp_path):
    path = made(tmp_path / "part", "filter")
    before = opened(path, "filter").b2[0]
    UnmaskFilter(*(np.ones(s, np.float32) for s in ((4, 5), (5,), (5, 4), (4,)))).save(path)
    assert opened(path, "filter").b2[0] == 1.0 != before
    parse(f"learn2pd(filter='{path}')")
