"""Modules that authors of decoders import keep their old names until version 0.4."""

import sys
from importlib import import_module

import pytest

from paradecode.moved import MOVED


@pytest.mark.parametrize(("old", "name", "new"), [
    ("paradecode.core.sequence", "TokenSequence", "TokenSequence"),
    ("paradecode.core.sequence", "Sequence", "TokenSequence"),
    ("paradecode.core.request", "Forward", "Forward"),
    ("paradecode.methods.parameters", "parameter", "parameter"),
    ("paradecode.methods.draft.method", "drafter", "drafter"),
])  # fmt: skip
def test_an_old_name_warns_and_is_the_new_one(monkeypatch, old, name, new):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=MOVED[old]):
        found = import_module(old)
    assert getattr(found, name) is getattr(import_module(MOVED[old]), new)
    with pytest.raises(AttributeError, match="Nothing"):
        found.Nothing


def test_every_new_name_is_a_module():
    assert all(map(import_module, MOVED.values()))
