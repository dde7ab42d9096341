"""Fixtures for tests of constraints: the default model, which does not need torch."""

from __future__ import annotations

import pytest

from paradecode.constraints.compile import Compiler
from paradecode.llm import LLM


@pytest.fixture(scope="session")
def llm():
    pytest.importorskip("llguidance")
    with LLM(threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def compiler(llm):
    return Compiler(llm.tokenizer, llm.config.vocab_size, llm.config.eos_tokens)


@pytest.fixture(scope="session")
def eos(llm):
    return llm.config.eos_tokens
