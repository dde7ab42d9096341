"""The requests of a decoder."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from paradecode.core.request import Forward


@pytest.mark.parametrize("name", [field.name for field in fields(Forward)])
def test_only_tokens_that_continue_the_text_can_be_spread(name):
    """A field that somebody adds asks for something: its tokens stay together."""
    forward = replace(Forward(np.arange(3, dtype=np.int32)), **{name: object()})
    harmless = {"tokens", "tree", "under", "places", "given", "hidden", "layers", "model", "on"}
    assert forward.sequential == (name in harmless)
