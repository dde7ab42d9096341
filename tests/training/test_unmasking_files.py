"""Files of the filter and of the joint sampler: what was saved comes back, and nothing else."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from part_files import LAYER_FACTS, header_of, made, opened, rewritten

from paradecode.backends.native.heads import run_networks
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import UnmaskFilter
from paradecode.methods.specs import parse

KINDS = ("filter", "layer")


def test_what_was_saved_comes_back(tmp_path):
    trained = opened(made(tmp_path / "filter", "filter"), "filter")
    assert trained.facts["block"] == 4
    item = {"confidence": np.zeros((2, 4), np.float32)}
    assert run_networks(trained.network, [item])[0].shape == (2, 4)
    layer = opened(made(tmp_path / "layer", "layer"), "layer")
    assert dict(layer.facts) == LAYER_FACTS
    states = np.ones((3, 6), np.float32)
    item = dict.fromkeys(("tokens", "positions", "groups"), np.arange(3))
    assert run_networks(layer.network, [{**item, "states": states}])[0].shape == (3, 6)
    assert sorted(os.listdir(tmp_path)) == ["filter", "layer"]


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


def test_a_changed_file_is_read_again(tmp_path):
    path = made(tmp_path / "part", "filter")
    before = opened(path, "filter").tensors["b2"][0]
    facts = {"block": 4, "width": 5}
    ones = {n: np.ones(shape, np.float32) for n, shape in UnmaskFilter(facts, {}).shapes().items()}
    UnmaskFilter(facts, ones).save(path)
    assert opened(path, "filter").tensors["b2"][0] == 1.0 != before
    parse(f"learn2pd(filter='{path}')")
