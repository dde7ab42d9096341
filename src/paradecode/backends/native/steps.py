"""Several steps of one sequence in one call of the core."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from paradecode.backends.interface import CommittedStep, StepsInput
from paradecode.backends.native._core import Lookup, Model, NgramTable
from paradecode.core.multi_step import LookupState, MultiStep, Table

_tables: WeakKeyDictionary[Table, NgramTable] = WeakKeyDictionary()


class NativeStepper:
    """Makes steps of one sequence; its lookup remembers the text."""

    def __init__(self, core: Model, asked: MultiStep) -> None:
        self._core, self._asked = core, asked.lookup
        self._lookup: Lookup | None = None
        if asked.lookup is not None:
            one = asked.lookup
            table = None if one.table is None else _table(one.table)
            self._lookup = Lookup(one.shortest, one.longest, one.most, one.patience, table)

    def run(self, given: StepsInput) -> list[CommittedStep]:
        warp = given.warp
        steps, learned = self._core.steps(
            self._lookup,
            None if self._asked is None else self._asked.read(),
            text=given.text,
            pages=given.pages,
            room=given.room,
            stops=given.stops,
            warp=(warp.temperature, warp.top_k, warp.top_p, warp.min_p),
            seed=given.seed,
            limit=given.limit,
            seconds=given.seconds,
            first_context=given.first_context,
        )
        if self._asked is not None:
            self._asked.write(LookupState(*learned))
        return [CommittedStep(*step) for step in steps]


def _table(table: Table) -> NgramTable:
    """The core's copy, made once for all requests."""
    known = _tables.get(table)
    if known is None:
        known = _tables[table] = NgramTable(table.rows)
    return known
