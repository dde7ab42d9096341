"""Marks doubtful speed-ups: they are more than their forwards explain, or the machine is busy.

The bound holds for one request at a time, the same model, and plain autoregressive decoding as the
baseline: each token of plain decoding takes a forward of one row, and a method that verifies takes
a forward of at least one row for the tokens that it commits. It does not hold for canvases, whose
caches make forwards cheaper, for methods that leave out layers without verification, and for
batches, whose requests share their forwards.
"""

from __future__ import annotations

from paradecode.core.decoder import Guarantee
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.specs import parse
from paradecode.timing.other_load import QUIET

MARGIN = 1.05
"""The factor from which a speed-up is more than its forwards explain; clocks are not more exact."""
SUSPICIOUS = (
    "Suspicious: A forward that verifies a draft is never cheaper than a plain one, so the "
    "speed-up cannot exceed tokens a forward; something else was timed."
)
BUSY = f"Other processes kept more than {QUIET} cores busy"


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
    """The cell of a speed-up, with a mark if it is suspicious."""
    return f"{cell} suspicious" if suspicious else cell
