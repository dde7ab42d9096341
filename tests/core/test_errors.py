"""Messages name the field, the value and the fix, and stay short whatever a file says."""

import tracemalloc

import numpy as np
import pytest

from paradecode.core.errors import MOST_FIELD, MOST_FIX, InvalidInput, InvalidModel, shown


@pytest.mark.parametrize("value", [
    3, 1.5, None, True, "it's", b"ab", [1, [2, "a"]], (1,), {3}, {"b": 1, "a": [2]}, range(5),
    np.arange(3), np.int64(3), "x" * 78, [[[[[[[[1]]]]]]]], {}, [],
], ids=str)  # fmt: skip
def test_a_short_value_reads_as_it_is(value):
    assert shown(value) == repr(value)


@pytest.mark.parametrize("value", [
    "x" * 79, list(range(99)), {str(n): n for n in range(99)}, "a" * 99, 10**99, range(10**90),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_long_value_reads_as_its_beginning(value):
    assert shown(value) == repr(value)[:77] + "..."


def test_what_cannot_be_written_is_named_by_its_type():
    assert shown(10**5000) in ("this int", shown(10**5000)[:80])
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert shown(nested) == "this list"
    while nested:  # Take it apart without recursion.
        nested = nested.pop()


def test_a_message_takes_little_memory():
    """Showing a value takes little memory, even if its full text would need much more."""
    values = ["\x01" * 100_000] * 40
    tracemalloc.start()
    try:
        many = dict.fromkeys(map(str, range(999)), values)
        for value in (values, {"a": values}, many, values[0]):
            assert len(str(InvalidInput("field", value, "give another"))) < 130
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_name_and_a_fix_that_a_file_wrote_are_cut():
    for kind in (InvalidInput, InvalidModel):
        error = kind("f" * 10_000, 1, "x" * 10_000)
        assert error.field == "f" * (MOST_FIELD - 3) + "..."
        assert error.fix == "x" * (MOST_FIX - 3) + "..."
        again = InvalidModel(error.field, error.value, error.fix)
        assert str(again) == str(error) == f"{error.field}: 1 is not usable; {error.fix}"
