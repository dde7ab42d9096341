"""The file of keys: what it may contain, and which errors it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_server import settings

from paradecode.core.errors import InvalidInput
from paradecode.serve.keys import MAX_KEYS, Key, plain_keys, read_keys

KEY = "the-key-of-alice"


def read(tmp_path: Path, value: Any) -> tuple[Key, ...]:
    path = tmp_path / "keys.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return read_keys(path)


def test_a_file_of_keys(tmp_path: Path) -> None:
    alice = {
        "key": KEY, "requests_per_minute": 60, "tokens_per_minute": 9000, "sequences": 4,
        "queue": 8, "priorities": [-5, 10], "salts": ["a", "b"],
    }  # fmt: skip
    found = read(tmp_path, {"alice": alice, "bob": {"key": "the-key-of-bob"}})
    assert found == (
        Key(name="alice", **{**alice, "priorities": (-5, 10), "salts": ("a", "b")}),
        Key(name="bob", key="the-key-of-bob"),
    )
    assert KEY not in repr(found)
    assert settings(keys=found).keys == found


@pytest.mark.parametrize(
    ("given", "field"),
    [({"key": "short"}, "keys.alice.key"), ({}, "keys.alice.key"), ("x", "keys.alice"),
     ({"key": 12345678}, "keys.alice.key"), ({"key": "äöüßäöüß"}, "keys.alice.key"),
     ({"key": KEY, "requests_per_minute": 0}, "keys.alice.requests_per_minute"),
     ({"key": KEY, "requests_per_minute": True}, "keys.alice.requests_per_minute"),
     ({"key": KEY, "tokens_per_minute": 1.5}, "keys.alice.tokens_per_minute"),
     ({"key": KEY, "sequences": 0}, "keys.alice.sequences"),
     ({"key": KEY, "queue": -1}, "keys.alice.queue"),
     ({"key": KEY, "priorities": [1]}, "keys.alice.priorities"),
     ({"key": KEY, "priorities": [5, 1]}, "keys.alice.priorities"),
     ({"key": KEY, "priorities": [0, 101]}, "keys.alice.priorities"),
     ({"key": KEY, "salts": "a"}, "keys.alice.salts"),
     ({"key": KEY, "salts": [""]}, "keys.alice.salts"),
     ({"key": KEY, "tokens": 5}, "keys.alice")],
)  # fmt: skip
def test_what_is_refused_names_its_field(tmp_path: Path, given: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, {"alice": given})
    assert refused.value.field.partition("[")[0] == field
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a b": {"key": "the-key-of-ab"}}'])
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="keys"):
        read(tmp_path, text)
    with pytest.raises(InvalidInput, match="keys"):
        read_keys(tmp_path / "nowhere.json")


def test_a_misnamed_key_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, {"alice": {"api_key": KEY}})
    assert "api_key" in str(refused.value)
    assert KEY not in str(refused.value)


def test_keys_differ_in_name_and_text() -> None:
    one, two = Key(name="a", key=KEY), Key(name="b", key=KEY)
    with pytest.raises(InvalidInput, match="a and b") as refused:
        settings(keys=(one, two))
    assert KEY not in str(refused.value)
    with pytest.raises(InvalidInput, match="name of its own"):
        settings(keys=(one, Key(name="a", key="another-key")))
    with pytest.raises(InvalidInput, match="key-1 and key-2"):
        settings(keys=plain_keys([KEY, KEY]))
    with pytest.raises(InvalidInput, match=f"at most {MAX_KEYS}"):
        settings(keys=plain_keys([f"key-number-{n}" for n in range(MAX_KEYS + 1)]))
