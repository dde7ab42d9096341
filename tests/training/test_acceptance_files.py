"""Files of the head and of the selector: what was saved comes back, and nothing else is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from acceptance_models import head, selector
from part_files import header_of, made, opened, rewritten

from paradecode.backends.native.heads import run_networks
from paradecode.core import tensor_file
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.networks import ResidualHead
from paradecode.methods.specs import parse

KINDS = ("acceptance_head", "tree_selector")


def spec_of(path: Path | str, field: str) -> dict[str, object]:
    budget = "specdec++" if field == "acceptance_head" else "delayed"
    return {"method": "layer-skip", "budget": budget, field: str(path)}


@pytest.mark.parametrize("field", KINDS)
def test_what_was_saved_comes_back(tmp_path, field):
    again = opened(made(tmp_path / "part", field), field)
    before = head(blocks=2) if field == "acceptance_head" else selector(4)
    assert again.facts == before.facts
    for name, values in before.tensors.items():
        assert np.array_equal(again.tensors[name], values)
    assert sorted(os.listdir(tmp_path)) == ["part"]  # Nothing half-written beside it.


@pytest.mark.parametrize("field", KINDS)
def test_the_safetensors_package_reads_it(tmp_path, field):
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = numpy.load_file(made(tmp_path / "part", field))
    assert all(values.dtype == np.float32 for values in tensors.values())


@pytest.mark.parametrize("field", KINDS)
def test_a_spec_names_the_file_and_a_stranger_may_not(tmp_path, field):
    path = made(tmp_path / "part", field)
    spec = spec_of(path, field)
    assert getattr(parse(spec)().budget, field.split("_")[1]) is not None
    fused = {**spec, "method": ["layer-skip", "prompt-lookup"]}
    parse(fused)
    text = f"prompt-lookup+layer-skip(budget='{spec['budget']}',{field}='{path}')"
    parse(text)
    for each in (spec, json.dumps(spec), fused, text):
        with pytest.raises(InvalidInput, match="where the server is started"):
            parse(each, trusted=False)


@pytest.mark.parametrize("field", KINDS)
def test_it_belongs_to_one_budget_and_to_drafters_with_a_model(tmp_path, field):
    spec = spec_of(made(tmp_path / "part", field), field)
    with pytest.raises(InvalidInput, match=field):
        parse({**spec, "budget": "auto"})
    for method in ("prompt-lookup", "suffix+token-recycling"):
        with pytest.raises(InvalidInput, match="drafts with a model"):
            parse({**spec, "method": method})


@pytest.mark.parametrize("field", KINDS)
def test_every_damage_of_the_header_is_refused(tmp_path, field):
    path = made(tmp_path / "part", field)
    header, body = header_of(path.read_bytes())
    name = next(key for key in header if key.endswith("weight"))
    entry = header[name]
    broken = [
        b"[]", b"null", b"{", b"[" * 60000, b"\xff\xfe", b"{}", b'{"__metadata__": 3}',
        {**header, "__metadata__": {**header["__metadata__"], "paradecode": "other 1"}},
        {**header, "__metadata__": {**header["__metadata__"], "facts": "{}"}},
        {**header, "__metadata__": {**header["__metadata__"], "facts": "[1]"}},
        {**header, "__metadata__": {**header["__metadata__"], "facts": 5}},
        {key: value for key, value in header.items() if key != name},
        {**header, "more": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}},
    ]  # fmt: skip
    for change in (
        {"dtype": "F16"}, {"dtype": None}, {"shape": [1 << 40, 1 << 40]}, {"shape": [-1, -5]},
        {"shape": [*entry["shape"][::-1], 1]}, {"shape": "ab"}, {"shape": 3}, {"shape": [2.0]},
        {"shape": [1] * 50}, {"data_offsets": [0, len(body) + 4]}, {"data_offsets": [8, 0]},
        {"data_offsets": [True, 4]}, {"data_offsets": [1]}, {"data_offsets": None},
    ):  # fmt: skip
        broken.append({**header, name: {**entry, **change}})
    broken += [{**header, name: value} for value in (None, 3, [], {})]
    for case in broken:
        rewritten(path, case, body)
        with pytest.raises(InvalidInput, match=field):
            opened(path, field)
    rewritten(path, header, body)
    opened(path, field)


@pytest.mark.parametrize("field", KINDS)
@pytest.mark.parametrize("value", [0, -1, 1 << 40, True, "5", None, 2.5, [5]])
def test_absurd_sizes(tmp_path, field, value):
    path = made(tmp_path / "part", field)
    header, body = header_of(path.read_bytes())
    metadata = header["__metadata__"]
    facts = json.loads(metadata["facts"])
    for name in [key for key in facts if isinstance(facts[key], int)]:
        if name == "blocks" and value == 0:
            continue  # A linear head.
        metadata["facts"] = json.dumps({**facts, name: value})
        rewritten(path, header, body)
        with pytest.raises(InvalidInput, match=field):
            opened(path, field)


def test_many_names_for_the_same_bytes_do_not_fill_the_memory(tmp_path):
    path = tmp_path / "bomb"
    body = bytes(1 << 20)
    entry = {"dtype": "F32", "shape": [1 << 18], "data_offsets": [0, 1 << 20]}
    metadata = {"paradecode": "acceptance head 1", "facts": "{}"}
    header = {"__metadata__": metadata, **{f"t{i}": entry for i in range(500)}}
    rewritten(path, header, body)
    with pytest.raises(InvalidInput, match="not what its header says"):
        ResidualHead.open(str(path))


def test_large_files_are_not_read(tmp_path):
    path = made(tmp_path / "part", "acceptance_head")
    with pytest.raises(InvalidInput, match="too large"):
        tensor_file.load(str(path), "acceptance head 1", "acceptance_head", most=-(1 << 20))
    with pytest.raises(InvalidInput, match="too many"):
        tensor_file.save(tmp_path / "out", "kind", {}, {"a": np.zeros(4)}, most=15)


def test_places_that_cannot_be_written(tmp_path):
    for place in (tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(InvalidInput, match="writable"):
            tensor_file.save(place, "kind", {}, {"a": np.zeros(4)})
    assert [path.name for path in tmp_path.iterdir()] == []


def test_huge_finite_weights_do_no_harm(tmp_path):
    """They overflow; what is predicted is of no use, and decoding goes on."""
    big = head()
    big.tensors["out"][:] = 3e38
    (chances,) = run_networks(big.network, [{"x": np.full((3, 5), 3e38, np.float32)}])
    assert chances.shape == (3, 1)
