"""The suite must reject wrong methods and only those: a test that cannot fail proves nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broken import RIGHT, WRONG, Drafted, NeverDrafts, fork_of
from paradecode.core.decoder import Decoder
from paradecode.engine import forward as forwards
from paradecode.engine.kv import KVCache
from paradecode.engine.pages import PagePool
from paradecode.engine.sequence import LiveSequence
from paradecode.testing.conformance import ConformanceFailure, check, useful


@pytest.mark.first(2)
@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_right_methods_pass(make: Callable[[], Decoder]) -> None:
    check(make, kinds=["toy"])


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_methods_are_rejected(make: Callable[[], Decoder]) -> None:
    with pytest.raises(ConformanceFailure):
        check(make, kinds=["toy"])


@pytest.mark.parametrize(
    "name", ["bonus of the parent's row", "positions off by one", "siblings see one another"]
)
def test_transformers_reject_them_too(name: str) -> None:
    with pytest.raises(ConformanceFailure):
        check(WRONG[name], kinds=["llama"], only=["batch-of-16", "penalties"])


def test_a_method_with_two_models_passes_on_transformers() -> None:
    check(RIGHT["draft model"], kinds=["llama"], only=["batch-of-16", "chunks-of-3", "penalties"])


def test_masked_models_get_the_structural_cases() -> None:
    canvas = {"guarantee": "lossy", "family": "diffusion"}
    check(NeverDrafts, kinds=["toy-masked"], **canvas)
    check(NeverDrafts, kinds=["toy-block"], only=["mixed-methods", "context-end"], **canvas)
    with pytest.raises(ConformanceFailure):
        check(WRONG["stops early"], kinds=["toy-masked"], **canvas)


def test_the_message_says_where() -> None:
    with pytest.raises(ConformanceFailure) as failure:
        check(WRONG["accepts a wrong draft token"], kinds=["toy"], only=["batch-of-16"])
    message = str(failure.value)
    assert "case batch-of-16 on toy: request " in message
    assert "at output token" in message
    assert "expected [" in message
    assert "got [" in message


def test_a_lossy_method_owes_no_tokens_but_keeps_the_bounds() -> None:
    check(WRONG["noise of one position along the path"], guarantee="lossy", kinds=["toy"])
    with pytest.raises(ConformanceFailure):
        check(WRONG["commits after the end"], guarantee="lossy", kinds=["toy"])
    with pytest.raises(ConformanceFailure):
        check(WRONG["never commits"], guarantee="lossy", kinds=["toy"])


def test_a_method_that_gains_nothing_is_correct_and_not_useful() -> None:
    check(NeverDrafts, kinds=["toy"], only=["batch-of-4"])
    gain = useful(NeverDrafts)
    assert not gain
    assert "no gain: 0 draft tokens accepted" in str(gain)
    assert useful("prompt-lookup")
    with pytest.raises(ConformanceFailure):
        useful(WRONG["accepts a wrong draft token"])


# Bugs of the engine: each one is planted, and must be found with a correct method.


def rejected(make: Callable[[], Decoder] = Drafted) -> None:
    with pytest.raises(ConformanceFailure):
        check(make, kinds=["toy"])


def test_a_leaked_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(cache: KVCache) -> None:
        for page in cache.pages[1:]:
            cache.tables[0].pool.release(page)
        cache.pages.clear()

    monkeypatch.setattr(KVCache, "release", release)
    with pytest.raises(ConformanceFailure, match="page"):
        check("greedy", kinds=["toy"], only=["batch-of-4"])


def test_a_page_given_back_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PagePool.take

    def take(pool: PagePool) -> int:
        page = real(pool)
        pool._free.append(page)
        return page

    monkeypatch.setattr(PagePool, "take", take)
    with pytest.raises(ConformanceFailure, match="page books"):
        check("greedy", kinds=["toy"], only=["batch-of-4"])


def test_accepted_rows_left_in_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paradecode.testing.toy.ToyBackend.copy", lambda *given: None)
    rejected(lambda: Drafted(tree=fork_of))


def test_shared_tenants_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paradecode.engine.resources.first_key", lambda salt, model: b"same")
    with pytest.raises(ConformanceFailure, match="tenant"):
        check("greedy", kinds=["toy"], only=["tenants"])


def test_pages_published_under_the_wrong_key_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(previous: bytes, tokens: NDArray[np.int32]) -> bytes:
        return previous + tokens[:4].tobytes()

    monkeypatch.setattr("paradecode.engine.kv.next_key", lax)
    rejected(NeverDrafts)


def test_rejected_rows_that_stay_visible_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = forwards.span_of

    def span_of(forward, cache, history):
        span, tentative = real(forward, cache, history)
        return replace(span, context=span.context + (span.context > 0)), tentative

    monkeypatch.setattr(forwards, "span_of", span_of)
    rejected()


def test_an_overrun_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    room = LiveSequence.room.fget
    assert room is not None
    monkeypatch.setattr(LiveSequence, "room", property(lambda seq: room(seq) + 1))
    rejected(NeverDrafts)
