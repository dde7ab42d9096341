"""A core that was compiled from other sources than the package is refused with a clear error."""

import hashlib
from pathlib import Path

import pytest
from naive import random_weights
from native_models import BASE

from paradecode.backends import native, open_backend
from paradecode.backends.native import INTERFACE, _core
from paradecode.cli.information import native_record
from paradecode.core.errors import InvalidInput


@pytest.mark.parametrize("found", [0, INTERFACE + 1])
def test_a_core_of_another_interface_is_refused(monkeypatch, found: int) -> None:
    if found:
        monkeypatch.setattr(_core, "INTERFACE", found)
    else:  # Of before it had a number.
        monkeypatch.delattr(_core, "INTERFACE")
    said = f"native core: 'interface {found}'.*needs interface {INTERFACE}; compile it anew"
    for name in ("native", "auto"):
        with pytest.raises(InvalidInput, match=said):
            open_backend(name, BASE, random_weights(BASE))
    record = native_record()
    assert not record["available"]
    assert "compile it anew" in record["reason"]


def test_what_needs_no_core_asks_for_none(monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delattr(_core, "INTERFACE")
    open_backend("torch", BASE, random_weights(BASE)).close()


def test_a_changed_interface_has_a_new_number() -> None:
    stub = Path(native.__file__).with_name("_core.pyi").read_text()
    digest = hashlib.sha256(stub.encode()).hexdigest()[:12]
    assert (INTERFACE, digest) == (14, "3b41e4233486"), (
        "the core's interface changed: raise INTERFACE in backends/native/__init__.py and"
        " kInterface in csrc/binding.cpp (unless only words changed), and write both here"
    )
