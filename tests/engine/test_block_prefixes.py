"""Prompts with equal beginnings share pages of models with blocks: same tokens, fewer rows."""

from typing import Any

import numpy as np
import pytest

from engines import served
from paradecode.backends.interface import PAGE
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import Attend, BlockCausal, Forward, Overwrite
from paradecode.core.tree import EMPTY
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.kv import KVCache
from paradecode.engine.pages import PagePool
from paradecode.engine.sequence import LiveSequence
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

PROMPT = [4 + (3 * i * i + i) % 24 for i in range(53)]
PREFIX = "threshold(threshold=0.6,cache=prefix)"


def backend(block: int) -> ToyBackend:
    return ToyBackend(toy_config(attention="block", block_length=block), surprise=700)


class Served:
    """An engine that serves several requests; its pages are checked after every step."""

    def __init__(self, backend: Any, **limits: Any) -> None:
        values = {"kv_tokens": 1024, **limits}
        self.engine = Engine({"target": backend}, Limits(**values), LetterText)

    def ask(self, *prompts: list[int], spec: str = PREFIX, **settings: Any) -> list[LiveSequence]:
        salt = settings.pop("salt", "")
        usual = {"max_tokens": 24, "ignore_eos": True, "seed": 1}
        return served(self.engine, [(spec, one, usual | settings) for one in prompts], salt=salt)


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32])
def test_a_second_request_computes_less_and_says_the_same(block: int) -> None:
    served = Served(backend(block))
    (first,), (second,) = served.ask(PROMPT), served.ask(PROMPT)
    assert (first.cached_tokens, second.output) == (0, first.output)
    whole = 52 // PAGE * PAGE // block * block
    assert second.cached_tokens == whole > 0
    assert second.rows <= first.rows - whole
    (alone,) = Served(backend(block)).ask(PROMPT, spec="threshold(threshold=0.6)")
    assert alone.output == first.output


def test_an_answer_is_a_prefix_of_the_next_turn() -> None:
    served = Served(backend(4))
    (first,) = served.ask(PROMPT)
    turn = [*PROMPT, *first.output, 7, 9, 11, 5, 6]
    (second,) = served.ask(turn)
    (fresh,) = Served(backend(4)).ask(turn)
    assert second.cached_tokens > len(PROMPT)
    assert second.output == fresh.output


@pytest.mark.first(4)
@pytest.mark.parametrize("spec", [
    PREFIX, "edit(threshold=0.5,least=0.3,cache=prefix)", "remask(cache=prefix)",
    "threshold(threshold=0.5,cache=two_level,block_length=2)", "static(cache=dual)",
    "freedave(cache=prefix)", "ete(cache=prefix,branches=2)", "deferred(cache=prefix)",
    "eotp(base=threshold(threshold=0.5),cache=prefix)", "threshold(threshold=0.6)",
])  # fmt: skip
def test_what_other_methods_leave_behind_is_exact(spec: str) -> None:
    """A request that reuses cached pages decodes exactly, whatever method wrote the pages."""
    served = Served(backend(4))
    (first,) = served.ask(PROMPT, spec=spec)
    for prompt in (PROMPT, [*PROMPT, *first.output][:70], PROMPT[:40]):
        (made,), (fresh,) = served.ask(prompt), Served(backend(4)).ask(prompt)
        assert made.output == fresh.output
        (made,) = served.ask(prompt, spec=spec)
        if "two_level" not in spec:
            assert made.output == Served(backend(4)).ask(prompt, spec=spec)[0].output


def test_tenants_share_nothing() -> None:
    served = Served(backend(4))
    served.ask(PROMPT, salt="a")
    assert served.ask(PROMPT, salt="b")[0].cached_tokens == 0
    assert served.ask(PROMPT, salt="a")[0].cached_tokens > 0


def test_the_limit_switches_it_off() -> None:
    served = Served(backend(4), prefix_cache=False)
    served.ask(PROMPT)
    assert served.ask(PROMPT)[0].cached_tokens == 0


def test_full_attention_shares_nothing() -> None:
    served = Served(ToyBackend(toy_config(attention="full"), surprise=700))
    served.ask(PROMPT)
    assert served.ask(PROMPT)[0].cached_tokens == 0


def test_batches_and_a_pool_that_is_nearly_full() -> None:
    """Pages are taken, copied on a write and recycled while other requests use them."""
    others = [[*PROMPT[:at], 9, 8, *PROMPT[at:]] for at in (16, 20, 31, 48)]
    served = Served(backend(8), kv_tokens=256)
    wanted = [Served(backend(8)).ask(prompt)[0].output for prompt in (PROMPT, *others)]
    for _ in range(3):
        made = served.ask(PROMPT, *others)
        assert [sequence.output for sequence in made] == wanted


def test_bit_for_bit_on_the_native_core() -> None:
    config, weights = tiny_checkpoint("sdar")
    native = NativeBackend(config, weights, threads=1)
    served = Served(native)
    (first,) = served.ask(PROMPT, logprobs=0)
    (second,) = served.ask(PROMPT, logprobs=0)
    assert second.cached_tokens > 0
    assert second.logprobs == first.logprobs
    assert second.output == first.output


HISTORY = np.array(PROMPT[:20], np.int32)


def forward(first: int, end: int, **changes: Any) -> Forward:
    """Return a forward of the history's rows ``first`` to ``end``, which see all earlier slots."""
    at = np.arange(first, end, dtype=np.int32)
    usual = {
        "attend": BlockCausal(4), "store": Overwrite(at), "positions": at,
        "visible": np.arange(first, dtype=np.int32), "logits": np.zeros(1, np.int32),
    }  # fmt: skip
    return Forward(**{"tokens": HISTORY[first:end], **usual, **changes})


MASKED = HISTORY[:8].copy()
MASKED[6] = 28
SWAPPED = np.array([1, 0, 2, 3, 4, 5, 6, 7], np.int32)
NOT_LAST = np.array([0, 1, 2, 3, 4, 5, 6, -1], np.int32)


@pytest.mark.parametrize(("first", "second", "final"), [
    (forward(0, 8), None, 8),
    (forward(0, 7), None, 4),  # Half a block.
    (forward(0, 8, tokens=MASKED), None, 4),
    (forward(0, 8, store=Overwrite(NOT_LAST)), None, 4),
    (forward(0, 8, store=Overwrite(SWAPPED)), None, 0),
    (forward(0, 8, attend=Attend.FULL), None, 0),
    (forward(0, 8, attend=Attend.CAUSAL), None, 0),
    (forward(0, 8, attend=BlockCausal(2)), None, 0),
    (forward(0, 8, attend=np.ones((8, 8), bool)), None, 0),
    (forward(0, 8, layers=(0,)), None, 0),
    (forward(0, 8, positions=np.array([0, 1, 2, 3, 4, 5, 6, 9], np.int32)), None, 0),
    (forward(0, 8), forward(8, 12), 12),
    (forward(0, 8), forward(4, 12), 12),
    (forward(0, 8), forward(0, 4), 8),  # The same again.
    (forward(0, 8), forward(12, 16), 8),  # Something is missing before it.
    (forward(0, 8), forward(8, 12, visible=np.arange(4, dtype=np.int32)), 8),
    (forward(0, 8), forward(8, 12, visible=None), 8),
    (forward(0, 8), forward(6, 12), 6),  # Not at the start of a block.
    (forward(0, 12), forward(4, 8, attend=Attend.FULL), 4),
    (forward(0, 12), forward(4, 8, tokens=MASKED[4:8]), 4),
    (forward(0, 8), forward(8, 12, store=Overwrite(np.full(4, -1, np.int32))), 8),
])  # fmt: skip
def test_what_counts_as_final(first: Forward, second: Forward | None, final: int) -> None:
    pool = PagePool(8)
    cache = KVCache(backend(4), pool, b"key", 0, 64)
    for each in (first, second):
        if each is not None:
            assert isinstance(each.store, Overwrite)
            cache.own(each.store.slots)
            cache.record(each, EMPTY, HISTORY)
    assert cache.final == final


def test_only_whole_final_pages_are_published() -> None:
    pool, model = PagePool(8), backend(4)
    model.reserve(8)
    cache = KVCache(model, pool, b"key", 0, 64)
    cache.own(np.arange(20, dtype=np.int32))
    cache.record(forward(0, 12), EMPTY, HISTORY)
    assert pool.changes == 0
    cache.record(forward(12, 20), EMPTY, HISTORY)
    assert (cache.final, pool.changes) == (20, 1)
    page = cache.pages[0]
    cache.own(np.array([3], np.int32))  # A published page is copied before it is written.
    assert cache.pages[0] != page
    other = KVCache(backend(4), pool, b"key", 0, 64)
    assert other.reuse(HISTORY) == other.final == PAGE
    assert other.pages == [page]
    assert KVCache(backend(4), pool, b"other", 0, 64).reuse(HISTORY) == 0
