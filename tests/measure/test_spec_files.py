"""By what a measurement knows the files of a method again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paradecode.methods.specs import Spec, find, parse
from paradecode_lab.measure.spec_files import digests_of


def spec(method: str, parts: tuple[Spec, ...] = (), **settings: str) -> Spec:
    """The spec that ``parse`` would give, but nobody checks that its files fit the method."""
    return Spec(find(method), settings, parts=parts)


@pytest.mark.parametrize(
    "naming",
    [
        lambda file: spec("eagle", head=file),
        lambda file: spec("suffix", (spec("suffix"), spec("prompt-lookup", table=file))),
        lambda file: spec("layer-skip", budget=f"specdec++(head={file!r})"),
    ],
    ids=["setting", "part of a fusion", "part in a setting"],
)
def test_files_within_a_spec(tmp_path: Path, naming) -> None:
    file = tmp_path / "own.bin"
    file.write_bytes(b"first")
    before = digests_of(naming(str(file)))
    assert list(before) == [str(file)]
    file.write_bytes(b"other")
    after = digests_of(naming(str(file)))
    assert list(after) == [str(file)]
    assert after != before


def test_what_comes_with_the_package_is_no_file() -> None:
    assert digests_of(parse("prompt-lookup(table='smollm2-135m-instruct')")) == {}
    assert digests_of(parse("threshold(block_length=8,cache=dual)")) == {}
