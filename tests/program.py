"""The command line without a process of its own, for the errors of which there are many."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from paradecode.cli import main


def in_process(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit status and what was written to the error stream; an exception is not caught."""
    monkeypatch.setattr(sys, "argv", ["paradecode", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err
