"""The planted mistakes fit the sources as they are; `python -m tools.mutants` plants them."""

from __future__ import annotations

import pytest

from repository import ROOT
from tools.mutants import Mistake, listed


@pytest.mark.parametrize("mistake", listed(), ids=lambda mistake: mistake.name)
def test_each_mistake_has_its_place_and_its_test(mistake: Mistake) -> None:
    assert (ROOT / mistake.file).read_text().count(mistake.right) == 1
    assert mistake.wrong != mistake.right
    file, _, function = mistake.test.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text()
