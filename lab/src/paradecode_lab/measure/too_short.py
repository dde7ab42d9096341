"""Recognises runs that are too short to tell how fast a method is."""

from __future__ import annotations

from collections.abc import Mapping

from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import number

FEWEST_PROMPTS, FEWEST_TOKENS, WIDEST = 6, 16, 1.5
"""Limits of a run that is long enough.

They are the fewest prompts, the fewest mean tokens of an answer, and the largest ratio of the upper
to the lower end of an interval.
"""
ENOUGH_OF_A_GROUP = 3
"""The fewest prompts that a group must have for its speed to be judged."""


def too_short(
    prompts: int,
    tokens: float,
    found: Mapping[str, Interval | None],
    unit: tuple[str, str] = ("prompt", "prompts"),
) -> str:
    """Return a warning if a run is too short to rank methods, and an empty text otherwise.

    Args:
        prompts: number of measured prompts; all turns of one conversation count as one, and so does
            a batch.
        tokens: mean number of tokens of plain decoding's answers, or of a canvas.
        found: method -> its speed-up.
        unit: singular and plural of what ``prompts`` counts.
    """
    known = {method: over for method, over in found.items() if over is not None}
    if not known:
        return ""
    method, widest = max(known.items(), key=lambda entry: entry[1].high / max(entry[1].low, 1e-9))
    wide = widest.high > WIDEST * widest.low
    if not wide and prompts >= FEWEST_PROMPTS and tokens >= FEWEST_TOKENS:
        return ""
    counted = f"Too short: {prompts} {unit[prompts != 1]} of {tokens:.0f} tokens"
    if prompts < 2:
        return f"{counted}; one {unit[0]} has no interval."
    return f"{counted}; the interval of {method} is {number(widest.low)} to {number(widest.high)}."
