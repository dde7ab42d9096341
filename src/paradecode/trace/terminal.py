"""Show a trace in the terminal: a line for each forward, the coloured text, a search's tree."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import cast

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from paradecode.completion import Completion
from paradecode.trace.record import CanvasStepRecord, DraftStepRecord, TokenRecord, Trace

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that could control the terminal, or hide or reorder text."""

SEEN = {"\n", "\u200c", "\u200d"}
"""Characters of these categories that are shown: line feeds, and joiners of letters and emoji."""


def terminal_view(trace: Trace) -> RenderableType:
    """Return a table of the forwards, the coloured text, and the tree of a search.

    It works for autoregressive and diffusion methods.
    """
    steps = _canvas_steps(trace) if trace["family"] == "diffusion" else _draft_steps(trace)
    title = Text(f"{trace['decoder']} on {trace['model']}, {trace['backend']} backend", "bold")
    text = Panel(coloured(trace["tokens"]), title="output")
    return Group(title, steps, text, _legend(trace), *_branches(trace))


def visible(text: str) -> str:
    """Return the text, with code points in place of invisible and control characters."""
    return "".join(
        f"⟨{ord(sign):04X}⟩" if unicodedata.category(sign) in UNSEEN and sign not in SEEN else sign
        for sign in text
    )


def _table(trace: Trace, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("forward", *headings, "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    last = "canvas" if trace["family"] == "diffusion" else "committed, and what was rejected"
    table.add_column(last, overflow="fold")
    return table


def _draft_steps(trace: Trace) -> Table:
    table = _table(trace, "tokens", "accepted")
    for step in cast("list[DraftStepRecord]", trace["steps"]):
        colour = colour_of(step["forward"])
        line = Text()
        for place, token in enumerate(step["tokens"]):
            if place == step["accepted"] and (rejected := _rejected(step)):
                line.append(f"[-{_line(trace, rejected)}-]", "dim")
            style = f"{colour} underline" if place < step["accepted"] else colour
            line.append(_line(trace, [token]), style)
        drafted = f"{step['accepted']}/{step['drafted']}" if step["drafted"] else ""
        table.add_row(
            str(step["forward"]), str(len(step["tokens"])), drafted, _ms(step["seconds"]), line
        )
    return table


def _rejected(step: DraftStepRecord) -> list[int]:
    """Return the tokens of the most likely path below the last accepted node."""
    tree = step["tree"]
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(tree["parents"]):
        children.setdefault(parent, []).append(child)
    node = tree["accepted"][-1] if tree["accepted"] else -1
    path: list[int] = []
    while node in children:
        node = max(children[node], key=lambda child: tree["estimates"][child])
        path.append(tree["tokens"][node])
    return path


def _canvas_steps(trace: Trace) -> Table:
    table = _table(trace, "committed", "masked")
    owner: list[int | None] = [None] * trace["canvas"]
    for position in trace["preset"]["positions"]:
        owner[position] = -1
    for index, step in enumerate(cast("list[CanvasStepRecord]", trace["steps"])):
        for position in step["remasked"]:
            owner[position] = None
        for position in step["committed"]["positions"]:
            owner[position] = index
        start, end = step["block"]
        line = Text()
        for position, by in enumerate(owner):
            if by is None:
                line.append("░" if start <= position < end else "·", "dim")
            else:
                line.append("█" if by == index else "▄", colour_of(_forward(trace, by)))
        table.add_row(
            str(step["forward"]), str(len(step["committed"]["positions"])),
            str(owner.count(None)), _ms(step["seconds"]), line,
        )  # fmt: skip
    return table


def _forward(trace: Trace, step: int) -> int:
    return trace["steps"][step]["forward"] if step >= 0 else 0


def _branches(trace: Trace) -> Iterator[RenderableType]:
    """Yield the tree of a search, with every branch below the branch that it continues."""
    branches = trace["branches"]
    if len(branches) < 2:
        return
    made = sum(branch["tokens"] for branch in branches)
    root = Tree(Text(f"search: {len(branches)} branches, {made} tokens; the answer is bold", "dim"))
    nodes: list[Tree] = []
    for branch in branches:
        score = "" if branch["score"] is None else f"{branch['score']:.3f}, "
        line = Text(visible(branch["text"]).strip().replace("\n", "⏎") + " ")
        line.stylize("bold" if branch["chosen"] else "dim")
        line.append(f"({score}{branch['tokens']} tokens, {branch['reason']})", "cyan")
        before = branch["after"]  # A branch follows the one that it continues.
        nodes.append((root if before is None else nodes[before]).add(line))
    yield root


def colour_of(forward: int) -> str:
    """Return the colour of a forward's tokens, or white for what was there before all forwards."""
    return COLOURS[(forward - 1) % len(COLOURS)] if forward else "white"


def coloured(tokens: Iterable[TokenRecord]) -> Text:
    """Return the output with one colour for each forward. Drafted tokens are underlined."""
    text = Text()
    for token in tokens:
        style = colour_of(token["forward"])
        text.append(visible(token["text"]), f"{style} underline" if token["drafted"] else style)
    return text


def bracketed(tokens: Iterable[TokenRecord]) -> Text:
    """Return the output without colours: each forward's number and tokens in brackets."""
    text = Text()
    for forward, together in groupby(tokens, lambda token: token["forward"]):
        if said := "".join(visible(token["text"]) for token in together):
            text.append(f"[{forward}|{said}]")
    return text


def legend(completion: Completion, has_colours: bool) -> Text:
    """Return how to read :func:`coloured` or :func:`bracketed`, and the counts of the output."""
    stats = completion.stats
    said = _counts(stats.generated, stats.forwards, stats.accepted, stats.drafted)
    how = (
        "a colour is a forward" if has_colours else "in brackets a forward's number and its tokens"
    )
    if has_colours and stats.drafted:
        how += ", underlined tokens were drafted"
    speed = f"; {stats.tokens_per_second:.1f} tokens/s" if stats.tokens_per_second else ""
    return Text(f"{said} ({how}){speed}", "dim")


def _counts(generated: int, forwards: int, accepted: int, drafted: int) -> str:
    """Return a line about the cost of an output. It mentions drafts only if there were any."""
    said = f"{generated} token{_s(generated)} in {forwards} forward{_s(forwards)}"
    return f"{said}, {accepted} of {drafted} draft tokens accepted" if drafted else said


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _legend(trace: Trace) -> Text:
    stats = trace["stats"]
    names = "generated", "forwards", "accepted", "drafted"
    said = _counts(*(cast(int, stats[name]) for name in names))
    if trace["family"] == "diffusion":
        how = "█ committed now, ▄ before, ░ masked in the open block, · masked"
    else:
        how = "underlined: drafted; [-in brackets-]: the likeliest of what was rejected"
    return Text(f"{said}. One colour a forward; {how}.", "dim")


def _line(trace: Trace, tokens: list[int]) -> str:
    """Return tokens as one line of text."""
    return visible("".join(trace["pieces"][str(token)] for token in tokens).replace("\n", "⏎"))


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
