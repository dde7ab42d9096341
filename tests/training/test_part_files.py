"""Damaged files of trained parts of every kind, and files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from part_files import OPENED, header_of, made, opened, rewritten

from paradecode.core.errors import InvalidInput


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
