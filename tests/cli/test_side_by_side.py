"""The demonstration with an engine whose clock is a part of the test."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from paradecode.cli import side_by_side as demo
from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import Stats
from paradecode.methods.specs import parse
from paradecode.timing.other_load import OtherLoad

PLAIN, ONCE, AT = 0.01, 5.0, 64
"""Seconds of a forward; a one-off cost, and the plain token at which it is due."""


class Engine:
    """Plain decoding takes a forward a token, the method one for two; all forwards cost the same.

    Args:
        hidden: seconds of each plain forward that no forward of the method has.
    """

    model, families, chat_template = "toy", ("autoregressive",), "a template"
    backend, config = SimpleNamespace(name="fake"), SimpleNamespace(context_length=512)
    decoder = parse("prompt-lookup")

    def __init__(self, hidden: float = 0.0) -> None:
        self.hidden, self.plain, self.salts = hidden, 0, set[str]()

    def chat_tokens(self, messages):
        return [1, 2, 3]

    def complete(self, prompts, params, *, decoder, salt):
        return [self._answer(params.max_tokens, str(parse(decoder)) == "greedy", salt)]

    def chat(self, messages, *, max_tokens, salt, decoder="prompt-lookup"):
        params = SamplingParams(max_tokens=max_tokens)
        return self.complete([[]], params, decoder=decoder, salt=salt)[0]

    def _answer(self, tokens, is_plain, salt):
        self.salts.add(salt)
        forwards = tokens if is_plain else 1 + (tokens - 1) // 2
        seconds = (forwards - 1) * (PLAIN + self.hidden * is_plain)
        if is_plain and self.plain < AT <= self.plain + tokens:
            seconds += ONCE
        self.plain += tokens * is_plain
        stats = Stats(forwards=forwards, generated=tokens, first_tokens=1, decode_seconds=seconds)
        return SimpleNamespace(stats=stats, token_ids=[7] * tokens, error=None)


def shown(engine, monkeypatch: pytest.MonkeyPatch, others: float = 0.0):
    monkeypatch.setattr(demo, "show", lambda *given: None)
    monkeypatch.setattr(OtherLoad, "look", lambda self: (1.0, others))
    file = io.StringIO()
    compared = demo.run_demo(engine, Console(file=file, width=160), max_tokens=41)
    return compared, file.getvalue()


def test_one_off_costs_do_not_reach_the_table(monkeypatch):
    engine = Engine()
    compared, text = shown(engine, monkeypatch)
    assert [round(each.over, 6) for each in compared] == [2.0] * 3
    assert [round(each.plain.stats.tokens_per_second) for each in compared] == [100] * 3
    assert text.count("2.00x") == 3
    assert "uspicious" not in text
    assert "busy" not in text
    assert {"plain", "parallel"} < engine.salts
    assert all(salt.startswith("warm-up") for salt in engine.salts - {"plain", "parallel"})


def test_what_forwards_do_not_explain_is_marked(monkeypatch):
    compared, text = shown(Engine(hidden=0.002), monkeypatch)
    assert all(each.suspicious for each in compared)
    assert text.count("2.40x suspicious") == 3
    assert "the speed-up cannot exceed tokens a forward" in " ".join(text.split())


def test_a_busy_machine_is_told(monkeypatch):
    _, text = shown(Engine(), monkeypatch, others=0.7)
    assert "Other processes kept more than 0.2 cores busy" in text
