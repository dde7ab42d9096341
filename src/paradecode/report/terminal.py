"""Tokens in the terminal, coloured by the forward that produced them."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from paradecode.completion import Completion
from paradecode.models.text_stream import TextStream

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def colour_by_forward(completion: Completion, new_text: Callable[[], TextStream]) -> Text:
    """The output with one colour a forward; tokens that came from a draft are underlined.

    Args:
        completion: with its trace.
        new_text: makes a detokeniser. A character that several tokens share takes the last one's
            colour; text behind a stop string is shown, since the tokens were generated.
    """
    stream, painted = new_text(), Text()
    style = ""
    for index, step in enumerate(completion.trace):
        for place, token in enumerate(step.tokens):
            style = COLOURS[index % len(COLOURS)]
            if place < step.accepted:
                style += " underline"
            painted.append(stream.push(token), style)
    painted.append(stream.flush(), style)
    return painted


def legend(completion: Completion) -> Text:
    """How to read the colours, and the counts behind them."""
    stats = completion.stats
    return Text(
        f"{stats.generated} tokens in {stats.forwards} forwards, "
        f"{stats.accepted} of {stats.drafted} draft tokens accepted "
        f"(a colour is a forward, underlined tokens were drafted); "
        f"{stats.tokens_per_second:.1f} tokens/s",
        "dim",
    )
