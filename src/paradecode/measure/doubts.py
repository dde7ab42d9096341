"""What makes a speed-up doubtful: more than its forwards explain, too little text, a busy machine.

The bound holds for one request at a time, the same model, and plain autoregressive decoding as the
baseline: each token of plain decoding takes a forward of one row, and a method that verifies takes
a forward of at least one row for the tokens that it commits. It does not hold for canvases, whose
caches make forwards cheaper, for methods that leave out layers without verification, and for
batches, whose requests share their forwards.
"""

from __future__ import annotations

from collections.abc import Mapping

from paradecode.core.decoder import Guarantee
from paradecode.measure.speeds import QUIET
from paradecode.measure.statistics import Interval
from paradecode.measure.tables import number
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.registry import parse

MARGIN = 1.05
"""A speed-up counts as more than its forwards explain from here: clocks are no better."""
SUSPICIOUS = (
    "Suspicious: A forward that verifies a draft is never cheaper than a plain one, so the "
    "speed-up cannot exceed tokens a forward; something else was timed."
)
BUSY = f"Other processes kept more than {QUIET} cores busy"
FEWEST_PROMPTS, FEWEST_TOKENS, WIDEST = 6, 16, 1.5
"""Prompts, mean tokens of an answer, and upper over lower end of an interval: a run with fewer, or
with a wider one, is too short to say how fast a method is."""
ENOUGH_OF_A_GROUP = 3
"""Prompts of a group; the clock says little of fewer."""


def verifies(method: str, guarantee: Guarantee | str) -> bool:
    """Whether a method commits nothing that a full forward of the target has not verified."""
    if guarantee in ("exact", "distribution"):
        return True
    return guarantee == "lossy" and isinstance(parse(method)(), DraftVerify)


def is_suspicious(over: float, later: float, forwards: float) -> bool:
    """Whether forwards do not explain a speed-up over plain decoding.

    Args:
        over: the lower end of its interval, where there is one.
        later, forwards: tokens and target forwards behind the first commit, of all requests.
    """
    return forwards > 0 and over > MARGIN * later / forwards


def marked(cell: str, suspicious: bool) -> str:
    """The cell of a speed-up, with the mark of one that cannot be."""
    return f"{cell} suspicious" if suspicious else cell


def too_short(prompts: int, tokens: float, found: Mapping[str, Interval | None]) -> str:
    """What a run says that is too short to rank methods; empty for one that is not.

    Args:
        prompts: that were measured, turns of a conversation as one.
        tokens: mean length of plain decoding's answers.
        found: method -> its speed-up.
    """
    known = {method: over for method, over in found.items() if over is not None}
    if not known:
        return ""
    method, widest = max(known.items(), key=lambda entry: entry[1].high / max(entry[1].low, 1e-9))
    wide = widest.high > WIDEST * widest.low
    if not wide and prompts >= FEWEST_PROMPTS and tokens >= FEWEST_TOKENS:
        return ""
    counted = f"Too short: {prompts} prompt{'s' if prompts != 1 else ''} of {tokens:.0f} tokens"
    if prompts < 2:
        return f"{counted}; one prompt has no interval."
    return f"{counted}; the interval of {method} is {number(widest.low)} to {number(widest.high)}."
