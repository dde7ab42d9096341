"""Fixtures that the tests of packed forwards share."""

from itertools import product

import pytest
from house import CONFIGS, House


@pytest.fixture(params=[*product(("torch", "native"), CONFIGS)], ids="-".join)
def house(request):
    """Give a backend and its naive NumPy reference, for every kind of model."""
    name, kind = request.param
    return House(CONFIGS[kind], name)
