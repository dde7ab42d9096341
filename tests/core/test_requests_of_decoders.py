"""Tests of the requests that decoders make."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from paradecode.core.decoder import Forward


@pytest.mark.parametrize("name", [field.name for field in fields(Forward)])
def test_only_tokens_that_continue_the_text_can_be_spread(name):
    """If somebody adds a field, requests that set it keep their tokens together."""
    forward = replace(Forward(np.arange(3, dtype=np.int32)), **{name: object()})
    harmless = {"tokens", "tree", "under", "places", "given", "hidden", "layers", "model", "on"}
    assert forward.sequential == (name in harmless)
