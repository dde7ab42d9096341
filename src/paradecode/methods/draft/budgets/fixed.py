"""A fixed number of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.budgets.base import Budget
from paradecode.methods.parts import declare


@declare("budget", "fixed", paper="EAGLE-2", arxiv="2406.16858")
@dataclass
class FixedBudget(Budget):
    """Verify up to ``num_speculative_tokens`` nodes at every step, the most promising first."""
