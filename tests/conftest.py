"""What all tests share: a browser, and settings for busy machines."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from browser import Browser, find_browser

# No deadlines, no complaints about slow first draws.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

if find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # The models here are too small to be shared among threads.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: install Chromium to test the page as people see it")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        yield opened
    finally:
        opened.close()
