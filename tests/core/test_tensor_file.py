"""Files whose headers describe the tensors wrongly are refused.

More cases are in the tests of trained parts.
"""

import json
import tracemalloc

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.core.tensor_file import load, save

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(2.0), "none": np.zeros((0, 4))}


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "part", "kind 1", {"size": 3}, TENSORS)
    return tmp_path / "part"


def test_what_was_saved_comes_back_and_can_be_changed(path):
    facts, tensors = load(str(path), "kind 1", "part")
    assert facts == {"size": 3}
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }
    tensors["a"][0, 0] = 7.0  # PyTorch asks for arrays that can be written.


@pytest.mark.parametrize("wrong", [
    {"data_offsets": [0, 8]}, {"data_offsets": [28, 36]}, {"data_offsets": [24, 36]},
    {"data_offsets": None}, {"data_offsets": ["0", 8]}, {"shape": [3]}, {"shape": [2.0]},
    {"shape": [-2]}, {"shape": [True, 2]}, {"shape": [1, 1, 1, 1, 2]}, {"shape": 2},
    {"shape": [1 << 70]}, {"dtype": "F16"}, {"dtype": None}, {"shape": [1e308, 10**400]},
    {"shape": ["a" * 100, 100_000]}, {"shape": "ab"},
])  # fmt: skip
def test_headers_that_do_not_describe_the_numbers(path, wrong):
    rewrite(path, wrong)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="not what its header says"):
            load(str(path), "kind 1", "part")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def rewrite(path, wrong):
    """Change what the header says about the tensor b."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["b"] |= wrong
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
