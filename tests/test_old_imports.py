"""Names that the documents gave to authors of decoders work until version 0.4, with a warning."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("paradecode.core.sequence", "Sequence", "TokenSequence")],
)
def test_an_old_name_warns_and_is_the_new_one(module, old, new):
    place = import_module(module)
    with pytest.warns(DeprecationWarning, match=new):
        found = getattr(place, old)
    assert found is getattr(place, new)
    with pytest.raises(AttributeError, match="Sequences"):
        place.Sequences
