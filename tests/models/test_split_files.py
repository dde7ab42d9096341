"""GGUF models that llama.cpp's tools have split into several files can be read."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf_writing import write_gguf

from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import open_model
from paradecode.models.tiny import tiny_checkpoint

NAME = "m-{:05}-of-{:05}.gguf"


@pytest.fixture
def whole(tmp_path):
    config, weights = tiny_checkpoint("qwen2")
    path = tmp_path / "whole.gguf"
    write_gguf(path, config, {name: tensor.float32() for name, tensor in weights.items()})
    return path


def parts(whole, folder, count=3, **changes):
    """Split a file; ``changes`` are fields that are added to all files or replace their fields."""
    folder.mkdir()
    reader = GGUFReader(whole)
    tensors = [*reader.tensors]
    for number in range(count):
        writer = GGUFWriter(folder / NAME.format(number + 1, count), "qwen2")
        said = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        for key, value in {**said, **changes}.items():
            writer.add_uint32(key, value)
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    kinds = field.types
                    writer.add_key_value(key, field.contents(), kinds[0], *kinds[1:2])
        for tensor in tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder


def test_parts_are_one_model(whole, tmp_path):
    base = open_model(whole)
    folder = parts(whole, tmp_path / "split")
    for place in (folder / NAME.format(1, 3), folder / NAME.format(2, 3), folder):
        read = open_model(place)
        assert read.config == base.config
        assert read.weights.keys() == base.weights.keys()
        for name, tensor in base.weights.items():
            np.testing.assert_array_equal(read.weights[name].float32(), tensor.float32())


@pytest.mark.wide
def test_incomplete_models_say_which_part_is_missing(whole, tmp_path):
    folder = parts(whole, tmp_path / "split")
    (folder / NAME.format(2, 3)).rename(folder / "other.gguf")
    with pytest.raises(InvalidModel, match="part 2 of 3 is missing"):
        open_model(folder / NAME.format(1, 3))
    with pytest.raises(InvalidModel, match="it is part 2 of 3; name the parts"):
        open_model(folder / "other.gguf")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("changes", "match"),
    [({"split.no": 0}, "of other models"), ({"split.tensors.count": 999}, "parts have"),
     ({"split.count": 9}, "it is part 1 of 9")],
)  # fmt: skip
def test_parts_that_contradict_each_other(whole, tmp_path, changes, match):
    folder = parts(whole, tmp_path / "split", **changes)
    with pytest.raises(InvalidModel, match=match):
        open_model(folder / NAME.format(1, 3))


@pytest.mark.wide
def test_two_split_models_in_a_folder(whole, tmp_path):
    folder = parts(whole, tmp_path / "split")
    (folder / "n-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidModel, match="choose a file"):
        open_model(folder)
