"""Marks a speed-up as doubtful if its forward passes do not explain it, or if the machine is busy.

The bound on a speed-up holds for one request at a time, the same model, and plain autoregressive
decoding as the baseline. Plain decoding runs a forward of one row for each token. A method that
verifies runs a forward of at least one row for the tokens that it commits. The bound does not hold
for canvases (their caches make forwards cheaper), for methods that skip layers without
verification, or for batches (their requests share forwards).
"""

from __future__ import annotations

from paradecode.core.decoder import Guarantee
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.specs import parse
from paradecode.timing.other_load import QUIET

MARGIN = 1.05
"""A speed-up above this factor times the bound is marked. Clocks are not more exact."""
SUSPICIOUS = (
    "Suspicious: A forward that verifies a draft is never cheaper than a plain one, so the "
    "speed-up cannot exceed tokens a forward; something else was timed."
)
BUSY = f"Other processes kept more than {QUIET} cores busy"


def verifies(method: str, guarantee: Guarantee | str) -> bool:
    """Return whether a method commits only tokens that a full target forward pass has verified."""
    if guarantee in ("exact", "distribution"):
        return True
    return guarantee == "lossy" and isinstance(parse(method)(), DraftVerify)


def is_suspicious(over: float, later: float, forwards: float) -> bool:
    """Return whether a speed-up over plain decoding is larger than its forward passes explain.

    Args:
        over: the speed-up, or the lower end of its interval if it has one.
        later, forwards: tokens, and target forwards, after the first commit, summed over requests.
    """
    return forwards > 0 and over > MARGIN * later / forwards


def marked(cell: str, suspicious: bool) -> str:
    """Return the table cell of a speed-up, with a mark if it is suspicious."""
    return f"{cell} suspicious" if suspicious else cell
