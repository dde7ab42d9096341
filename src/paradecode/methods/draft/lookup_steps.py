"""Prompt lookup and its budget as a backend carries them on for several steps."""

from __future__ import annotations

from paradecode.core.multi_step import BudgetState, Lookup, LookupState, MultiStep
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.budgets.base import Budget
from paradecode.methods.draft.ngram_index import NgramIndex
from paradecode.methods.draft.ngram_table import TableDrafts


def lookup_steps(
    index: NgramIndex, table: TableDrafts | None, odds: Odds, budget: Budget
) -> MultiStep:
    """Several steps of this lookup; what they teach is read and written through these objects."""
    begun = _known(budget)

    def read() -> LookupState:
        known = _known(budget)
        table_odds = table.odds.read() if table else [[]] * 5
        return LookupState(odds.read(), table_odds, known.calibration, known.refusals, known.shared)

    def write(state: LookupState) -> None:
        odds.write(state.odds)
        if table is not None:
            table.odds.write(state.table_odds)
        budget.write(BudgetState(state.calibration, state.refusals))

    entries = None if table is None else table.table
    lookup = Lookup(
        index.shortest, index.longest, budget.count, begun.patience, entries, read, write
    )
    return MultiStep(lookup)


def _known(budget: Budget) -> BudgetState:
    known = budget.read()
    assert known is not None  # Or the loop would not ask.
    return known
