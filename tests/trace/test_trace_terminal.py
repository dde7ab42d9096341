"""Tests the terminal view of both families, and of text that would control the terminal."""

import io
import re

from rich.console import Console
from trace_samples import denoised, drafted, hostile, searched

from paradecode.completion import Completion
from paradecode.core.trace import Stats
from paradecode.trace import Trace, bracketed, coloured, legend, terminal_view


def printed(trace: Trace, colour: bool = False) -> str:
    file = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=file, width=160, force_terminal=colour, color_system=system)
    console.print(terminal_view(trace))
    return file.getvalue()


def test_a_line_for_each_forward_of_a_draft() -> None:
    lines = [" ".join(line.split()) for line in printed(drafted()).splitlines()]
    assert "2 3 2/4 5.0 cat sat[- on it-] upon" in lines
    assert "3 3 2/5 6.0 the mat." in lines
    assert "5 1 0/4 9.0 [- and then-]⏎" in lines
    assert any("The cat sat upon the mat." in line for line in lines)
    assert any("4 of 13 draft tokens accepted" in line for line in lines)


def test_drafted_tokens_are_underlined_in_the_colour_of_their_forward() -> None:
    text = printed(drafted(), colour=True)
    assert "\x1b[4;33m cat\x1b[0m" in text
    assert "\x1b[33m upon\x1b[0m" in text


def counted(has_colours: bool = True, **counts: int | float) -> str:
    completion = Completion("", [], "stop", Stats(**counts), [], [])  # type: ignore[arg-type]
    return legend(completion, has_colours).plain


def test_the_legend_says_only_what_there_was() -> None:
    """The legend has drafts only if the method drafts, and a speed only if one was measured."""
    assert counted(generated=4, forwards=1) == "4 tokens in 1 forward (a colour is a forward)"
    said = counted(generated=1, forwards=2, accepted=1, drafted=3)
    assert said.startswith("1 token in 2 forwards, 1 of 3 draft tokens accepted (a colour is a")
    assert "underlined tokens were drafted" in said
    assert counted(generated=11, forwards=5, first_tokens=1, decode_seconds=2.0).endswith(
        "; 5.0 tokens/s"
    )
    assert "in brackets" in counted(False, generated=4, forwards=2)


def test_without_colours_a_forward_is_in_brackets() -> None:
    tokens = drafted()["tokens"]
    shown = bracketed(tokens).plain
    assert shown.startswith("[1|The][2| cat sat upon][3| the mat.]")
    assert coloured(tokens).plain == "".join(re.findall(r"\[\d+\|([^]]+)\]", shown))


def test_the_canvas_fills() -> None:
    trace = denoised()
    canvases = re.findall(r"[█▄░·]{48}", printed(trace))
    assert len(canvases) == len(trace["steps"])
    for canvas, step in zip(canvases, trace["steps"], strict=True):
        assert "committed" in step
        assert [at for at, sign in enumerate(canvas) if sign == "█"] == step["committed"][
            "positions"
        ]
    assert "·" in canvases[0]
    assert set(canvases[-1]) == {"█", "▄"}


def test_the_branches_of_a_search() -> None:
    lines = printed(searched()).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("search:"))
    assert [line.rstrip() for line in lines[first:]] == [
        "search: 5 branches, 18 tokens; the answer is bold",
        "├── The cat sat upon (0.750, 4 tokens, stop)", "│   ├── the mat. (0.875, 3 tokens, stop)",
        "│   └── a rug (-12.250, 2 tokens, stop)",
        "└── <b>It</b> was⟨202E⟩ nowhere, so all (0.500, 9 tokens, length)",
        "    └──  (0 tokens, cancelled)",
    ]  # fmt: skip
    assert "search:" not in printed(drafted())


def test_control_characters_are_spelled_out() -> None:
    text = printed(hostile(200))
    assert not set(text) & {"\x1b", "\x00", "\x07", "\r", "\t", "\u202e", "\u2028", "\ud800"}
    assert "⟨202E⟩right to left" in text
