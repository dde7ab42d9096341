"""Budgets, one a file: how many draft tokens are worth drafting and verifying now."""

from __future__ import annotations

from collections.abc import Callable

from paradecode.decoders.autoregressive.budget.base import Budget, Seconds, accepted_path
from paradecode.decoders.autoregressive.budget.confidence import Confidence
from paradecode.decoders.autoregressive.budget.cost_curve import CostCurve
from paradecode.decoders.autoregressive.budget.delayed import Delayed
from paradecode.decoders.autoregressive.budget.dyspec import DySpec
from paradecode.decoders.autoregressive.budget.fixed import Fixed
from paradecode.decoders.autoregressive.budget.hardware import Hardware
from paradecode.decoders.autoregressive.budget.sequoia import Sequoia
from paradecode.decoders.autoregressive.budget.specdec import SpecDecPP

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
