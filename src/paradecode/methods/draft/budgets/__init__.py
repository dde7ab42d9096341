"""Budgets, one a file: how many draft tokens are worth drafting and verifying now."""

from __future__ import annotations

from collections.abc import Callable

from paradecode.methods.draft.budgets.base import Budget, Seconds, accepted_path
from paradecode.methods.draft.budgets.confidence import Confidence
from paradecode.methods.draft.budgets.cost_curve import CostCurve
from paradecode.methods.draft.budgets.delayed import Delayed
from paradecode.methods.draft.budgets.dyspec import DySpec
from paradecode.methods.draft.budgets.fixed import Fixed
from paradecode.methods.draft.budgets.hardware import Hardware
from paradecode.methods.draft.budgets.sequoia import Sequoia
from paradecode.methods.draft.budgets.specdec import SpecDecPP

__all__ = [
    "BUDGETS", "Budget", "Confidence", "CostCurve", "Delayed", "DySpec", "Fixed", "Hardware",
    "Seconds", "Sequoia", "SpecDecPP", "accepted_path",
]  # fmt: skip

BUDGETS: dict[str, Callable[[int, float], Budget]] = {
    "auto": lambda count, threshold: CostCurve(count),
    "fixed": lambda count, threshold: Fixed(count),
    "confidence": Confidence,
    "specdec++": SpecDecPP,
    "dyspec": lambda count, threshold: DySpec(count),
    "sequoia": lambda count, threshold: Sequoia(count),
    "hardware": lambda count, threshold: Hardware(count),
    "delayed": lambda count, threshold: Delayed(count),
}
"""Name -> (most nodes, threshold) -> budget."""
