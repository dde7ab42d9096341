"""Files of trained parts: what was saved is read again, and damaged files are refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from acceptance_models import head
from part_files import OPENED, header_of, made, opened, random_part, rewritten

from paradecode.backends.native.heads import run_networks
from paradecode.core import tensor_file
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.policies.learned import UnmaskFilter
from paradecode.methods.draft.budgets.networks import ResidualHead
from paradecode.methods.specs import parse


@pytest.mark.parametrize("field", OPENED)
def test_what_was_saved_comes_back(tmp_path, field):
    before = random_part(field)
    again = opened(made(tmp_path / "part", field), field)
    assert again.facts == before.facts
    for name, values in before.tensors.items():
        assert np.array_equal(again.tensors[name], values)
    assert sorted(os.listdir(tmp_path)) == ["part"]  # Nothing half-written beside it.


@pytest.mark.parametrize("field", OPENED)
def test_the_safetensors_package_reads_it(tmp_path, field):
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = numpy.load_file(made(tmp_path / "part", field))
    assert all(values.dtype == np.float32 for values in tensors.values())


@pytest.mark.parametrize(
    ("field", "budget"), [("acceptance_head", "specdec++"), ("tree_selector", "delayed")]
)
def test_it_belongs_to_one_budget_and_to_drafters_with_a_model(tmp_path, field, budget):
    path = str(made(tmp_path / "part", field))
    spec = {"method": "layer-skip", "budget": budget, field: path}
    assert getattr(parse(spec)().budget, field.split("_")[1]) is not None
    with pytest.raises(InvalidInput, match=field):
        parse({**spec, "budget": "auto"})
    for method in ("prompt-lookup", "suffix+token-recycling"):
        with pytest.raises(InvalidInput, match="drafts with a model"):
            parse({**spec, "method": method})


@pytest.mark.parametrize("field", OPENED)
def test_every_damage_of_the_header_is_refused(tmp_path, field):
    path = made(tmp_path / "part", field)
    header, body = header_of(path.read_bytes())
    name = next(key for key in header if key != "__metadata__" and len(header[key]["shape"]) > 1)
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


@pytest.mark.parametrize("field", OPENED)
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
    """Weights so large that they overflow give useless predictions, but decoding continues."""
    big = head()
    big.tensors["out"][:] = 3e38
    (chances,) = run_networks(big.network, [{"x": np.full((3, 5), 3e38, np.float32)}])
    assert chances.shape == (3, 1)


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("size", [0, 4, 8, 20, 300, -4, -1])
def test_truncated(tmp_path, kind, size):
    path = made(tmp_path / "part", kind)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InvalidInput, match=kind):
        opened(path, kind)


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(tmp_path, kind, value):
    path = made(tmp_path / "part", kind)
    header, body = header_of(path.read_bytes())
    bad = np.array(value, "<f4").tobytes()
    for damaged in (bad + body[4:], body[:-4] + bad):
        rewritten(path, header, damaged)
        with pytest.raises(InvalidInput, match="NaN or infinite"):
            opened(path, kind)


@pytest.mark.parametrize("kind", OPENED)
def test_other_files(tmp_path, kind):
    others = [made(tmp_path / other, other) for other in OPENED if other != kind]
    (tmp_path / "text").write_text("x" * 5000)
    places = ["text", "missing", "nul\0byte", "x" * 5000, "."]
    for place in [*others, *(tmp_path / name for name in places), Path("/dev/zero")]:
        with pytest.raises(InvalidInput, match=kind):
            opened(place, kind)
    os.mkfifo(tmp_path / "pipe")  # Opening it would wait for ever.
    with pytest.raises(InvalidInput, match="regular"):
        opened(tmp_path / "pipe", kind)


@pytest.mark.parametrize(("kind", "name", "value"), [
    ("filter", "block", 5), ("layer", "vocab_size", 8), ("layer", "width", 6),
    ("layer", "heads", 3), ("layer", "heads", 8),
])  # fmt: skip
def test_sizes_that_do_not_fit_one_another(tmp_path, kind, name, value):
    path = made(tmp_path / "part", kind)
    header, body = header_of(path.read_bytes())
    facts = json.loads(header["__metadata__"]["facts"])
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
