"""Tests that what a tenant's requests learn is bounded, whatever settings they have."""

from collections.abc import Iterator

import pytest

from paradecode.engine.resources import Limits
from paradecode.engine.stores import SMALL
from paradecode.llm import LLM

MODEL = "paradecode/tiny-autoregressive"
MOST = 100_000


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    limits = Limits(learned_bytes=MOST)
    with LLM(MODEL, draft_model=MODEL, limits=limits, threads=1) as made:
        yield made


def stores(llm: LLM, salt: str) -> list[str]:
    return list(llm.engine.stores.of(salt, salt))


def test_a_tenant_with_ever_new_settings_does_not_cost_another_its_stores(llm: LLM) -> None:
    llm.complete("red blue green red", decoder="suffix", salt="modest", max_tokens=8)
    known = stores(llm, "modest")
    assert "suffix" in known
    for keys in range(8, 68):
        llm.complete(
            "red blue", decoder=f"triforce(keys={keys},guesses=0,budget=fixed)", salt="greedy",
            max_tokens=4, ignore_eos=True,
        )  # fmt: skip
    kept = stores(llm, "greedy")
    assert 0 < len(kept) < MOST // SMALL
    assert kept[-1].endswith(" 67")  # The oldest went.
    assert stores(llm, "modest") == known


@pytest.mark.parametrize(("method", "setting"), [("swift", "skip"), ("s2d", "sure")])
def test_settings_that_hardly_differ_learn_together(llm: LLM, method: str, setting: str) -> None:
    for number in range(6):
        llm.complete(
            "red blue", decoder=f"{method}({setting}={0.3 + number / 1500},budget=fixed)",
            salt=method, max_tokens=3, ignore_eos=True,
        )  # fmt: skip
    assert len([name for name in stores(llm, method) if name.startswith(method)]) == 1
