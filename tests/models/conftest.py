"""Fixtures shared by the tests of model reading."""

from __future__ import annotations

import pytest

from paradecode.models.catalogue import open_model


@pytest.fixture(scope="session")
def default_model():
    return open_model()
