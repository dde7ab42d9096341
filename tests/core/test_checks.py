import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from paradecode.core.checks import (
    anything,
    attributes,
    build,
    checked,
    flag,
    indices,
    json_object,
    known,
    listed,
    mapping,
    maybe,
    nested,
    number,
    one_of,
    text,
    text_in,
    whole,
)
from paradecode.core.errors import InvalidInput, InvalidModel


@pytest.mark.parametrize(("check", "good", "clean"), [
    (anything, object, object), (flag, False, False), (whole(0, 3), np.int64(3), 3),
    (whole(), 10**30, 10**30), (number(0, 1), 1, 1.0), (number(0, 1), np.float32(0.5), 0.5),
    (number(), -1e300, -1e300), (text(2), "ab", "ab"), (one_of("a", 2), 2, 2),
    (maybe(flag), None, None), (mapping, {"a": 1}, {"a": 1}),
    (listed(whole(0, 9), 2), (1, 2), [1, 2]),
])  # fmt: skip
def test_what_passes_comes_back_clean(check, good, clean):
    found = check("field", good)
    assert found == clean
    assert type(found) is type(clean)


@pytest.mark.parametrize(("check", "bad", "said"), [
    (flag, 1, "true or false"), (whole(0, 3), True, "whole number from 0 to 3"),
    (whole(0, 3), 1.0, "whole number"), (whole(0, 3), 4, "from 0 to 3"),
    (whole(0, 3), "1", "whole number"), (number(0, 1), float("nan"), "a number from 0 to 1"),
    (number(0), float("inf"), "finite number, not negative"), (number(), float("nan"), "finite"),
    (number(), 10**400, "finite"), (number(0, 1), True, "number"),
    (number(0, 1, above=True), 0, "above 0"), (number(0, 1), "0.5", "number"),
    (text(2), 2, "a text"), (text(2, least=1), "", "1 to 2 characters"),
    (text(2), "abc", "0 to 2 characters"), (one_of("a", 1), True, "a, 1"),
    (one_of("a"), ["a"], "use one of a"), (mapping, [], "an object"),
    (listed(flag, 2), "ab", "a list"), (listed(flag, 1), [True, True], "at most 1"),
    (indices, [0.5], "whole numbers"), (indices, [True], "whole numbers"),
    (indices, [[1]], "a vector"), (indices, [[1], [1, 2]], "a vector"), (indices, 3, "a vector"),
    (indices, [1 << 31], "32 bits"), (indices, np.array([-(1 << 40)]), "32 bits"),
    (indices, [1 << 80], "whole numbers"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(check, bad, said):
    with pytest.raises(InvalidInput, match=said) as error:
        check("field", bad)
    assert error.value.field == "field"


@pytest.mark.parametrize("value", [[3, -1], (3, -1), np.array([3, -1]), np.array([3, -1], np.int8)])
def test_indices_are_of_one_type(value):
    found = indices("slots", value)
    assert found.dtype == np.int32
    assert found.tolist() == [3, -1]
    assert indices("slots", found) is found
    assert indices("slots", []).dtype == np.int32


def test_the_bad_entry_of_a_list_is_named():
    with pytest.raises(InvalidInput, match=r"^field\[1\]"):
        listed(flag, 2)("field", [True, 0])


def test_known_names():
    known(("a", "b"), ("b",), "setting")
    with pytest.raises(InvalidInput, match=r"setting: 'c' .* a, b"):
        known(("a", "b"), ("c",), "setting")


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.0
    names: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = checked(nested(Inner))
    on: bool = False


def test_a_dataclass_from_an_object():
    value = {"inner": {"count": 1, "names": ["a"], "note": None}}
    assert build(Outer, value) == Outer(Inner(1, names=("a",)))


@pytest.mark.parametrize(("value", "said"), [
    ([], "an object"), ({}, "inner: nothing is given"),
    ({"inner": {}}, "inner.count: nothing is given"), ({"inner": {"count": -1}}, "inner.count"),
    ({"inner": {"count": 1, "share": float("inf")}}, "inner.share"),
    ({"inner": {"count": 1, "names": ["a", 1]}}, r"inner.names\[1\]"),
    ({"inner": {"count": 1, "note": 1}}, "inner.note"),
    ({"inner": {"count": 1, "more": 1}}, "inner.more: .* count, share"),
    ({"inner": {"count": 1}, "on": 1}, "on: 1"),
])  # fmt: skip
def test_an_object_that_is_no_such_dataclass(value, said):
    with pytest.raises(InvalidInput, match=said):
        build(Outer, value)


def test_attributes_are_cleaned_and_refused_as_the_caller_wants():
    inner = Inner(np.int64(2))
    attributes(inner, {"count": whole(0, 2)})
    assert type(inner.count) is int
    with pytest.raises(InvalidModel, match=r"inner\.count"):
        attributes(inner, {"count": whole(0, 1)}, "inner.", InvalidModel)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_holds_no_object(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="profile"):
        json_object(path, "profile")


def test_a_file_that_is_no_regular_file(tmp_path):
    """Files that are not regular are refused: a pipe would block, and a device may never end."""
    for place in (tmp_path, Path("/dev/null")):
        for read in (json_object, partial(text_in, most=9)):
            with pytest.raises(InvalidInput, match=r"profile.*regular file"):
                read(place, "profile")


def test_no_more_is_read_than_may_be_there(tmp_path):
    """Reading stops at the allowed size, because the reported size can be wrong, as in /proc."""
    path = tmp_path / "a"
    path.write_bytes(b"ab\r\nc")
    assert text_in(path, "profile", 5) == "ab\nc"
    with pytest.raises(InvalidInput, match="at most 4 bytes"):
        text_in(path, "profile", 4)
    assert int(text_in(Path("/proc/self/stat"), "profile", 4096).split()[0]) == os.getpid()
    with pytest.raises(InvalidInput, match="at most 3 bytes"):
        text_in(Path("/proc/self/stat"), "profile", 3)


def test_an_object_in_a_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": 1}))
    assert json_object(path, "profile") == {"a": 1}
    with pytest.raises(InvalidInput, match="too large"):
        json_object(path, "profile", most=3)
    with pytest.raises(InvalidInput, match="cannot be read"):
        json_object(tmp_path / "b.json", "profile")
