"""Tests the demo with an engine whose clock belongs to the test."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.panel import Panel

from paradecode.cli import side_by_side as demo
from paradecode.completion import Chunk, Completion
from paradecode.core.trace import Commit, Stats
from paradecode.methods.specs import parse
from paradecode.timing.comparison import speed
from paradecode.timing.other_load import OtherLoad

PLAIN, ONCE, AT = 0.01, 5.0, 64
"""Seconds of a forward; seconds of a one-off cost; and the plain token at which this cost comes."""
DRAWING = 3.0
"""Seconds that each drawn picture takes."""


class Engine:
    """A fake engine.

    Plain decoding makes a token per forward, the method two; all forwards cost the same.

    Args:
        decoder: spec of the method.
        hidden: additional seconds of each plain forward.

    Attributes:
        now: time of the engine's clock, in seconds.
    """

    model, families, chat_template = "toy", ("autoregressive",), "a template"
    backend, config = SimpleNamespace(name="fake"), SimpleNamespace(context_length=512)

    def __init__(self, decoder: str = "prompt-lookup", hidden: float = 0.0) -> None:
        self.decoder = parse(decoder)
        self.hidden, self.plain, self.now, self.salts = hidden, 0, 0.0, set[str]()

    def chat_tokens(self, messages):
        return [1, 2, 3]

    def complete(self, prompts, params, *, decoder, salt):
        return [list(self.stream(prompts[0], params.max_tokens, decoder, salt))[-1].completion]

    def stream(self, prompt, max_tokens, decoder, salt):
        self.salts.add(salt)
        is_plain = decoder is None or str(decoder) in ("greedy", "static")
        made, forwards = 0, 0
        while made < max_tokens:
            new = 1 if is_plain or not forwards else 2
            new = min(new, max_tokens - made)
            self.now += PLAIN + self.hidden * is_plain
            if is_plain and self.plain < AT <= self.plain + new:
                self.now += ONCE
            self.plain += new * is_plain
            made, forwards = made + new, forwards + 1
            commit = Commit(forwards, (7,) * new, "x" * new)
            if made < max_tokens:
                yield Chunk(commit.text, [7] * new, None, (None,), (commit,), forwards)
        stats = Stats(forwards=forwards, generated=made, first_tokens=1, decode_seconds=1e9)
        ended = Completion("x" * made, [7] * made, "length", stats, [], [1, 2, 3])
        yield Chunk(commit.text, [7] * new, ended, (), (commit,), forwards)


def shown(monkeypatch: pytest.MonkeyPatch, others: float = 0.0, **settings):
    """Run the demo with an engine's own clock; return what it compares and what it prints."""
    engine, canvas = Engine(**settings), Engine("threshold")
    canvas.model = "tiny"

    def panel(*given, **settings):
        engine.now += DRAWING
        canvas.now += DRAWING
        return Panel(*given, **settings)

    monkeypatch.setattr(demo, "Panel", panel)
    monkeypatch.setattr(demo, "perf_counter", lambda: engine.now + canvas.now)
    monkeypatch.setattr(demo, "trace_of", lambda completion, llm: {"tokens": []})
    monkeypatch.setattr(OtherLoad, "look", lambda self: (1.0, others))
    file = io.StringIO()
    compared = demo.run_demo(engine, canvas, Console(file=file, width=160), max_tokens=41)
    assert {"plain", "parallel"} < engine.salts
    return compared, file.getvalue()


def test_only_decoding_is_timed(monkeypatch):
    """Measured times leave out one-off costs and pictures, and the prompt except for the canvas."""
    compared, text = shown(monkeypatch)
    assert [round(each.over, 6) for each in compared.values()] == [2.0, 2.0, 1.75]
    assert [round(speed(each.plain)) for each in compared.values()] == [100] * 3
    assert "41 tokens, 21 forwards, 0.20 s" in text
    assert "7 tokens, 4 forwards, 0.04 s" in text
    assert text.count("2.00x") == 2
    assert "uspicious" not in text
    assert "busy" not in text
    assert all(line.rstrip().endswith("╯") for line in text.splitlines() if "╯" in line)


def test_what_forwards_do_not_explain_is_marked(monkeypatch):
    compared, text = shown(monkeypatch, hidden=0.002)
    assert [each.suspicious for each in compared.values()] == [True, True, False]
    assert text.count("2.40x suspicious") == 2
    assert "the speed-up cannot exceed tokens a forward" in " ".join(text.split())


def test_a_busy_machine_is_told(monkeypatch):
    _, text = shown(monkeypatch, others=0.7)
    assert "Other processes kept more than 0.2 cores busy" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_panes_stand_side_by_side_and_race_on_a_terminal(monkeypatch, width):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(demo, "trace_of", lambda completion, llm: {"tokens": []})
    monkeypatch.setattr(demo, "FRAME", -1.0)
    printed = []
    for terminal in (False, True):
        console = Console(file=io.StringIO(), width=width, force_terminal=terminal)
        demo.race(Engine(), console, "edit", "Hello", 41)
        printed.append(console.file.getvalue())
    final, live = printed
    lines = final.splitlines()
    assert max(map(len, lines)) <= width
    assert any("41 tokens, 41 forwards" in at and "41 tokens, 21 forwards" in at for at in lines)
    assert "\x1b" not in final
    assert "12 forwards" not in final
    assert "12 tokens, 12 forwards" in live
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", live)
