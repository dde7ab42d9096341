"""Layers with a state: drafts, prefixes and forks leave every output as plain decoding gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from state_models import KINDS, ask, outputs, state_engine, state_model, told

from paradecode.backends.interface import PAGE
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.lineage import lineage
from paradecode.engine.kv import KVCache
from paradecode.engine.states import SequenceStates

RANDOM = np.random.default_rng(3)
PROMPTS = [np.tile(RANDOM.integers(1, 40, m), 9)[:n].tolist()
           for m, n in ((5, 3), (7, 16), (9, 33), (11, 49), (4, 15))]  # fmt: skip
METHODS = ("prompt-lookup(budget=fixed)", "token-recycling(budget=fixed)")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec", METHODS)
def test_drafts_change_no_output(kind: str, spec: str, temperature: float) -> None:
    plain = outputs(state_engine(kind, batch=1), "greedy", PROMPTS, temperature=temperature)
    engine = state_engine(kind, step_tokens=40)
    params = {"seed": 7, "temperature": temperature, "logprobs": 0}
    asked = [ask(engine, spec, prompt, **params) for prompt in PROMPTS]
    while engine.busy:
        engine.step()
        engine.check()
    assert [told(one) for one in asked] == plain
    drafted, accepted = (sum(getattr(one.stats, name) for one in asked)
                         for name in ("drafted", "accepted"))  # fmt: skip
    assert 0 < accepted < drafted
    assert engine.states["target"].records.held == engine.states["target"].states.held == 0


@pytest.mark.wide
@pytest.mark.parametrize("spec", ["suffix", "lookahead", "jacobi", "layer-skip", "greedy"])
def test_further_methods_change_no_output(kind: str, spec: str) -> None:
    plain = outputs(state_engine(kind, batch=1), "greedy", PROMPTS)
    assert outputs(state_engine(kind, step_tokens=17), spec, PROMPTS) == plain


@pytest.mark.wide
def test_pytorch_gives_the_same_tokens(kind: str) -> None:
    pytest.importorskip("torch")
    plain = outputs(state_engine(kind, torch=True, batch=1), "greedy", PROMPTS)
    drafted = outputs(state_engine(kind, torch=True, step_tokens=40), METHODS[1], PROMPTS)
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in plain]


def test_a_cached_prefix_of_every_length_changes_no_output() -> None:
    text = RANDOM.integers(1, 40, 71).tolist()
    engine, none = state_engine("hybrid"), state_engine("hybrid", prefix_cache=False)
    first = ask(engine, "greedy", text, max_tokens=1)
    while engine.busy:
        engine.step()
    assert first.cached_tokens == 0
    found = []
    for length in range(1, 71):
        prompt = [*text[:length], 1, 2]
        asked = ask(engine, "greedy", prompt, max_tokens=2, seed=7, logprobs=0)
        while engine.busy:
            engine.step()
            engine.check()
        assert [told(asked)] == outputs(none, "greedy", [prompt], max_tokens=2)
        found.append(asked.cached_tokens)
    assert max(found) == 64
    assert {each % PAGE for each in found} == {0}


def test_states_do_not_grow_with_the_context() -> None:
    engine = state_engine("mamba-2")
    sequence, pools, held = ask(engine, "suffix", PROMPTS[0], max_tokens=300), [], []
    while engine.busy:
        engine.step()
        pools.append(engine.states["target"].records.held)
        held.append(engine.states["target"].states.held)
    assert len(sequence.tokens) == 303
    assert max(pools) <= 2 + 64 // PAGE
    assert max(held) <= 3
    left = engine.states["target"]
    assert left.held_bytes == left.states.idle * left.state_bytes > 0


def test_what_states_cannot_do_is_refused_by_name() -> None:
    sequence = ask(
        engine := state_engine("hybrid"), "triforce(keys=16,recent=8,budget=fixed)", PROMPTS[3]
    )
    while engine.busy:
        engine.step()
    assert "layers with a state see every row" in str(sequence.error)
    config = state_model("hybrid")[0]
    with pytest.raises(InvalidModel, match="left to right"):
        replace(config, attention="full", mask_token=1)
    with pytest.raises(InvalidInput, match="each position"):
        lineage(0, 3, np.empty(0, np.int32), np.array([5], np.int32), None)


# Planted mistakes: each changes an output of a model whose drafts are accepted and rejected.


def _once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
) -> None:
    if isinstance(owner, str):
        module, _, inner = owner.partition(":")
        owner = import_module(module)
        owner = getattr(owner, inner) if inner else owner
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: wrong(right, *given, **more))


def _not_advanced(right: Any, self: Any, layers: Any) -> Any:
    slot = self.slot
    found = right(self, layers)
    if self.slot != slot >= 0:  # The new page begins with the old page's state.
        self.backend.states = {key: _copied(memory, slot, self.slot)
                               for key, memory in self.backend.states.items()}  # fmt: skip
    return found


def _copied(memory: Any, source: int, target: int) -> Any:
    memory.states[target] = memory.states[source]
    return memory


def _rejected_kept(right: Any, self: Any, nodes: list[int]) -> None:
    """Rows of accepted tokens are not moved, so records of rejected ones stay in their slots."""
    if self.recalled is not None:
        moved = self.recalled.move
        self.recalled.move = lambda source, target: None
        right(self, nodes)
        self.recalled.move = moved


def _sibling(right: Any, view: Any, new: Any, cached: Any, before: Any, taps: Any) -> Any:
    """The convolution reads the row before in the forward, whoever it is."""
    wrong = [path.copy() for path in view.paths]
    for row, path in enumerate(wrong):
        if row and len(path):
            path[-1] = len(cached) + row - 1
    own, view.paths = view.paths, wrong
    try:
        return right(view, new, cached, before, taps)
    finally:
        view.paths = own


def _advanced_twice(right: Any, self: Any, layers: Any) -> Any:
    """The new state is decayed once more, as by a page that is read again."""
    slot = self.slot
    found = right(self, layers)
    if self.slot != slot:
        for memory in self.backend.states.values():
            memory.states[self.slot] *= 0.5
    return found


def _other_branch(right: Any, self: Any, span: Any) -> None:
    """Behind a page's end, rows of a tree go on from the last row of that page in the forward."""
    right(self, span)
    for path, pages in zip(self.paths, self.pages):
        end = pages * PAGE - 1
        if pages > 0 and end < len(path):
            same = [other[end] for other in self.paths if len(other) > end]
            path[end] = max(same)


def _snapshot_of_a_draft(right: Any, self: Any, forward: Any, *given: Any) -> Any:
    """A draft counts as committed, so that its state becomes the sequence's."""
    if forward.tree.is_chain:
        tokens = np.concatenate([forward.tokens, forward.tree.tokens])
        forward = replace(forward, tokens=tokens)
    return right(self, forward, *given)


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (SequenceStates, "wrote", _advanced_twice),
        (SequenceStates, "plan", _snapshot_of_a_draft),
        ("paradecode.backends.torch.states:StateView", "__init__", _other_branch),
        (SequenceStates, "wrote", _not_advanced),
        (KVCache, "_line_up", _rejected_kept),
        ("paradecode.backends.torch.states", "convolve", _sibling),
    ],
)
def test_a_planted_mistake_changes_an_output(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]
) -> None:
    pytest.importorskip("torch")
    plain = plain_outputs()
    _once(monkeypatch, owner, name, wrong)
    for spec in METHODS:
        try:
            found = outputs(state_engine("hybrid", torch=True), spec, PROMPTS)
        except InvalidInput:
            return  # It is refused, which is as good.
        if found != plain:
            return
    pytest.fail("nobody notices it")


@cache
def plain_outputs() -> Any:
    return outputs(state_engine("hybrid", torch=True, batch=1), "greedy", PROMPTS)


def test_a_fork_copies_records_before_it_writes_them() -> None:
    engine = state_engine("hybrid")
    sequence = ask(engine, METHODS[1], PROMPTS[0], max_tokens=9)
    while len(sequence.tokens) < len(PROMPTS[0]) + 2:
        engine.step()
    recalled = sequence.cache("target").recalled
    assert recalled is not None
    twin = recalled.fork()
    assert twin.held() == recalled.held()
    held, _ = recalled.held()
    twin._own([0])
    assert twin.held()[0] != held == recalled.held()[0]
    twin.release()
    while engine.busy:
        engine.step()
        engine.check()


def test_a_prefix_ends_at_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix that is reused beyond the last state gives other tokens."""
    text = RANDOM.integers(1, 40, 60).tolist()
    wanted = outputs(state_engine("hybrid"), "greedy", [[*text[:40], 3]])
    engine = state_engine("hybrid")
    outputs(engine, "greedy", [text], max_tokens=1)
    assert outputs(engine, "greedy", [[*text[:40], 3]]) == wanted
    engine = state_engine("hybrid")
    outputs(engine, "greedy", [text], max_tokens=1)
    states = engine.states["target"].states
    last = next(iter(states._page_of.values()))
    monkeypatch.setattr(states, "find", lambda key: last)
    assert outputs(engine, "greedy", [[*text[:40], 3]]) != wanted
