"""The default model, opened once."""

import pytest

from paradecode import LLM


@pytest.fixture(scope="session")
def llm():
    with LLM(backend="native") as llm:
        yield llm
        assert not llm.engine.busy
        llm.engine.check()
