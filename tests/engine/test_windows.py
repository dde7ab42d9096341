"""Pages that a sliding window has passed are freed, and nothing that a method sees changes."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from driving import PROMPT, add, finish, greedy, plainly, toy_engine

from broken import Drafted, fork_of
from engines import served
from paradecode.backends.interface import PAGE, Backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import (
    Fork,
    Forward,
    Overwrite,
    Steps,
    Store,
    TokenSequence,
    Verdict,
)  # fmt: skip
from paradecode.core.errors import CapacityError, DecoderError, InvalidInput
from paradecode.core.tree import EMPTY
from paradecode.engine import kv
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.pages import PageTable
from paradecode.methods.draft.verifiers import coupled
from paradecode.models.config import ModelConfig, uniform
from paradecode.models.parts import Attention
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Tensor
from paradecode.testing.conformance import ConformanceFailure, check
from paradecode.testing.machines import CONTEXT, Kind, oracle_backends
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

WINDOWS = [(0, 1), (16, 0), (0, 17), (9, 9), (23, 6)]
CASES = [
    "batch-of-16", "chunks-of-3", "chunks-of-7", "little-memory", "mixed-methods", "prefix-cache",
    "cancelled-neighbour", "context-end", "several-choices",
]  # fmt: skip
NOTHING = np.empty(0, np.int32)


def toy(*windows: int, **config: Any) -> ToyBackend:
    first, second = windows
    return ToyBackend(toy_config(windows=(first, second), **config))


def toys(windows: tuple[int, int], kind: Kind) -> Mapping[str, Backend]:
    """Return the models of the conformance suite, the target with sliding windows."""
    return {**oracle_backends(kind), "target": toy(*windows, context_length=CONTEXT)}


@pytest.mark.first(2)
@pytest.mark.parametrize("windows", WINDOWS)
def test_drafts_and_trees_keep_every_promise(windows: tuple[int, int]) -> None:
    check(partial(Drafted, tree=fork_of), partial(toys, windows), kinds=["toy"], only=CASES)


def test_a_page_that_is_freed_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = PageTable.forget
    monkeypatch.setattr(PageTable, "forget", lambda table, first: forget(table, first + 1))
    with pytest.raises(ConformanceFailure, match=r"windows: .*the window of 16 has passed"):
        check("greedy", partial(toys, (0, 16)), kinds=["toy"], only=["batch-of-4"])


def test_a_page_of_another_sequence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is freed but stays in its table is written by others, so hashes differ."""

    def forget(table: PageTable, first: int) -> None:
        for page in table.pages[: max(0, first + 1 - table.first)]:
            if table.pool._holders[page]:
                table.pool._holders[page] = 0
                table.pool._free.append(page)

    monkeypatch.setattr(PageTable, "forget", forget)
    with pytest.raises(ConformanceFailure):
        check("greedy", partial(toys, (0, 17)), kinds=["toy"], only=["batch-of-4"])


def branches(seq: TokenSequence) -> Steps:
    """Fork three children at once and one later, which outlive the window; adopt the second."""
    reply = yield Forward(seq.pending)
    seq.commit(coupled(seq, EMPTY, reply))
    children = list((yield Fork(3)))
    for index, child in enumerate(children):
        child.commit(Verdict([10 + index], [0], reply.logits))
    for step in range(30):
        replies = yield [Forward(child.pending, on=child) for child in children]
        for child, one in zip(children, replies):
            child.commit(coupled(child, EMPTY, one))
        if step == 20:
            children += yield Fork(1, of=children[1])
    assert (children[3].tokens == children[1].tokens).all()
    seq.adopt(children[1])
    yield from plainly(seq)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("length", [15, 16, 31, 37])
def test_forks_have_windows_of_their_own(windows: tuple[int, int], length: int) -> None:
    backend, prompt = toy(*windows), PROMPT[:length]
    engine = toy_engine({"target": backend})
    sequence, beside = add(engine, branches, prompt, 40), add(engine, plainly, prompt, 40)
    finish(engine)
    assert sequence.error is None
    start = [greedy(prompt, 1, backend)[0], 11]
    assert sequence.output == [*start, *greedy((*prompt, *start), 38, backend)]
    assert beside.output == greedy(prompt, 40, backend)


# The prefix cache.

TEXT = [4 + (7 * i * i + 3 * i) % 24 for i in range(90)]


class Turns:
    """An engine of a toy with windows, asked for one answer after the other."""

    def __init__(self, *windows: int, **limits: Any) -> None:
        self.toy = toy(*windows)
        self.engine = toy_engine({"target": self.toy}, **limits)

    def ask(self, prompt: list[int], count: int = 40) -> tuple[int, list[int]]:
        """Return the number of cached tokens of a request, and its output, which is right."""
        sequence = add(self.engine, plainly, prompt, count)
        finish(self.engine)
        assert sequence.error is None
        assert sequence.output == greedy(prompt, count, self.toy)
        return sequence.cached_tokens, sequence.output


@pytest.mark.parametrize("windows", [(0, 20), (33, 0), (16, 0), (20, 20), (1, 0)])
@pytest.mark.parametrize("length", range(50, 67, 4))
def test_prompt_and_answer_are_found_again(windows: tuple[int, int], length: int) -> None:
    """The last window of the prompt, and that of the answer, stay."""
    turns, prompt = Turns(*windows), TEXT[:length]
    _, answer = turns.ask(prompt)
    whole = (length - 1) // PAGE * PAGE
    assert turns.ask(prompt)[0] == whole
    assert turns.ask([*prompt, 9, 7])[0] == (length // PAGE * PAGE if windows[0] else whole)
    end = (length + len(answer) - 1) // PAGE * PAGE
    assert turns.ask([*prompt, *answer, 9], 5)[0] == end


@pytest.mark.parametrize("length", range(17, 80, 3))
def test_a_shared_beginning_is_found_by_the_third_request(length: int) -> None:
    """The second one finds no window there, computes it, and leaves it."""
    turns, whole = Turns(0, 20), length // PAGE * PAGE
    turns.ask([*TEXT[:length], *[5] * 30])
    found = [turns.ask([*TEXT[:length], *[other] * 30])[0] for other in (6, 7, 8)]
    assert found[0] <= whole
    assert found[1:] == [whole, whole]


def test_idle_windows_are_bounded() -> None:
    turns = Turns(0, 40, kv_tokens=4096)
    window = turns.engine.pools["target"].kinds[1]
    for start in range(40):
        turns.ask([start % 25, *TEXT[start : start + 50]], 30)
    assert turns.engine.pools["target"].idle > 2 * window.idle
    assert window.idle == 4096 // PAGE // 8


# What cannot work with rows that are gone.


@pytest.mark.parametrize("change", [
    {"store": Overwrite(np.array([3], np.int32)), "positions": np.array([3], np.int32)},
    {"visible": np.arange(3, dtype=np.int32), "positions": np.array([3], np.int32)},
])  # fmt: skip
def test_rows_before_the_window_are_refused(change: Any) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending[:-1])
        yield Forward(seq.tokens[3:4], **{"store": Store.NONE, **change})

    engine = toy_engine({"target": toy(0, 16)})
    sequence, neighbour = add(engine, decode, TEXT), add(engine, plainly, TEXT)
    finish(engine)
    assert isinstance(sequence.error, (DecoderError, InvalidInput))
    assert "window of 16" in str(sequence.error)
    assert neighbour.output == greedy(TEXT, toy=toy(0, 16))


def test_only_windows_leave_room_for_long_texts() -> None:
    """With windows in all layers a request needs no more memory than they have."""
    limits = {"kv_tokens": 320, "step_tokens": 16, "draft_tokens": 8, "batch": 4}
    backend = toy(20, 9, context_length=2000)
    engine = toy_engine({"target": backend}, **limits)
    long = [add(engine, plainly, [*TEXT, n], 500) for n in range(2)]
    finish(engine, 5000)
    assert [one.output for one in long] == [greedy([*TEXT, n], 500, backend) for n in range(2)]

    def hoards(seq: TokenSequence) -> Steps:
        for at in range(0, 400, 16):
            place = np.arange(at, at + 16, dtype=np.int32)
            yield Forward(place % 25, store=Overwrite(place), positions=place, visible=NOTHING)

    greedy_one, neighbour = add(engine, hoards, TEXT, 500), add(engine, plainly, TEXT, 500)
    finish(engine, 5000)
    assert isinstance(greedy_one.error, CapacityError)
    assert neighbour.output == greedy(TEXT, 500, backend)


# The native core.


def windowed(config: ModelConfig, *windows: int) -> ModelConfig:
    """Return the configuration with other windows, repeated for all layers."""
    stack = []
    for index, layer in enumerate(config.stack):
        parts = (
            replace(part, window=windows[index % len(windows)])
            if isinstance(part, Attention) else part for part in layer.parts
        )  # fmt: skip
        stack.append(replace(layer, order=tuple(parts)))
    return replace(config, stack=tuple(stack))


def tiny(windows: tuple[int, ...], **options: Any) -> NativeBackend:
    config, weights = tiny_checkpoint("llama", near_tie=True)
    config = windowed(replace(config, context_length=400), *windows)
    return NativeBackend(config, weights, threads=2, **options)


@pytest.mark.parametrize("windows", [(20, 0), (33, 7), (0, 64)])
def test_bits_are_those_of_a_cache_that_keeps_everything(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int, int]
) -> None:
    """Several steps in a call, trees, drafts, chunks, batches and prefixes change no bit."""
    methods = ("greedy", "prompt-lookup", "token-recycling", lambda: Drafted(tree=fork_of))
    texts = [TEXT[:75], [5, 6, 7, 8, 9] * 15, TEXT[:33], [5, 6, 7, 8, 9] * 15 + TEXT[:20]]
    params = {"max_tokens": 60, "ignore_eos": True, "logprobs": 0, "seed": 1}
    jobs = [(method, text, params) for text in texts for method in methods]

    def run() -> list[Any]:
        backend = tiny(windows)
        engine = Engine({"target": backend}, Limits(kv_tokens=4096, step_tokens=40), LetterText)
        made = [one for part in range(4) for one in served(engine, jobs[part::4])]
        assert any(one.cached_tokens for one in made[4:])
        return [(one.output, one.logprobs) for one in made]

    freed = run()
    monkeypatch.setattr(kv, "slides", lambda config: False)
    monkeypatch.setattr("paradecode.engine.resources.slides", lambda config: False)
    assert freed == run()


def test_gemma_3_270m_at_32768_positions_holds_at_most_115_megabytes() -> None:
    """A model with its layers of attention, but few other weights, counts the bytes.

    The prompt's rows see only one another in each chunk, so that they cost little.
    """
    config = windowed(uniform(
        "small", "llama", vocab_size=40, hidden_size=8, layers=18, heads=1, kv_heads=1,
        head_dim=256, intermediate_size=8, context_length=32768,
    ), 512, 512, 512, 512, 512, 0)  # fmt: skip
    random = np.random.default_rng(0)
    weights = {
        name: Tensor(random.normal(size=shape).astype(np.float32), shape)
        for name, shape in config.tensors().items()
    }
    backend, held = NativeBackend(config, weights, dtype="f32"), list[float]()
    limits = Limits(kv_tokens=32768 + 128, draft_tokens=64, step_tokens=128)
    engine = Engine({"target": backend}, limits)
    pool = engine.pools["target"]

    def decode(seq: TokenSequence) -> Steps:
        while len(seq.pending) > 1:
            part = seq.pending[: min(128, len(seq.pending) - 1)]
            yield Forward(part, visible=NOTHING, logits=NOTHING)
        while not seq.finished:
            reply = yield Forward(seq.pending)
            sizes = backend.slot_bytes
            held.append(sum(kind.held * PAGE * sizes[kind.window] for kind in pool.kinds))
            seq.commit(coupled(seq, EMPTY, reply))

    sequence = add(engine, decode, [each % 40 for each in range(32758)], 10)
    while engine.busy:
        engine.step()
    assert sequence.error is None
    assert len(sequence.tokens) == 32768
    assert 32768 * 3 * 1024 < held[-1] <= 115e6
    assert sum(backend.slot_bytes.values()) * 32768 > 600e6  # If all layers keep everything.
    # The system gives memory in stretches of 32 pages.
    assert backend.cache_bytes <= held[-1] + 64 * PAGE * sum(backend.slot_bytes.values())
