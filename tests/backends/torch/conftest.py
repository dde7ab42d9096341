"""Fixtures that the tests of packed forwards share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=("plain", "window", "everything", "factors"))
def house(request):
    """A backend and its naive twin, for every kind of model."""
    from house import CONFIGS, House  # Needs PyTorch, which other tests here do without.

    return House(CONFIGS[request.param])
