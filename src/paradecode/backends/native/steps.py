"""Make several steps of several sequences in one call of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import CommittedStep, Curve, StatePages, StepsInput, WindowPages
from paradecode.backends.native._core import CostCurve, Experience, Model, NgramTable, StepSequence
from paradecode.core.logits import Warp
from paradecode.core.multi_step import LookupState, MultiStep, Table

K = TypeVar("K")
T = TypeVar("T")
NO_WINDOWS: Mapping[int, WindowPages] = MappingProxyType({})

_tables: WeakKeyDictionary[Table, NgramTable] = WeakKeyDictionary()
_experiences: WeakKeyDictionary[object, Experience] = WeakKeyDictionary()
_curves: WeakKeyDictionary[Curve, CostCurve] = WeakKeyDictionary()


class NativeStepper:
    """A sequence in the core, which keeps the text for prompt lookup."""

    def __init__(
        self, asked: MultiStep, stops: NDArray[np.int32], warp: Warp, seed: int, scored: bool
    ) -> None:
        self._lookup = one = asked.lookup
        settings = None
        if one is not None:
            entries = one.table
            table = None if entries is None else _core_of(_tables, entries, _table)
            settings = one.shortest, one.longest, one.most, one.patience, table
        numbers = warp.temperature, warp.top_k, warp.top_p, warp.min_p
        self.core = StepSequence(settings, stops, numbers, seed, scored)

    def enter(
        self, text: NDArray[np.int32], room: int, steps: int, rows: int,
        hidden: Sequence[int] = (),
    ) -> None:  # fmt: skip
        if self._lookup is None:
            self.core.enter(text, room, steps, rows, hidden, None, None)
            return
        *state, shared = self._lookup.read()
        experience = Experience()
        if shared is not None:
            experience = _core_of(_experiences, shared, lambda _: experience)
        self.core.enter(text, room, steps, rows, hidden, tuple(state), experience)

    def hold(
        self, pages: NDArray[np.int32], windows: Mapping[int, WindowPages] = NO_WINDOWS,
        states: StatePages | None = None, own_states: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.core.hold(pages, windows, states, own_states)

    @property
    def state(self) -> tuple[int, int]:
        return self.core.state

    def leave(self) -> None:
        learned = self.core.learned()
        if self._lookup is not None and learned is not None:
            self._lookup.write(LookupState(*learned))


def run_steps(
    core: Model, steppers: Sequence[NativeStepper], given: StepsInput
) -> list[list[CommittedStep]]:
    curve = None if given.curve is None else _core_of(_curves, given.curve, _curve)
    made = core.steps(
        [stepper.core for stepper in steppers],
        curve=curve,
        overhead=given.overhead,
        before=(given.sequences, given.rows),
        spare=given.spare,
        groups=given.groups,
        limit=given.limit,
    )
    return [[CommittedStep._make(step) for step in steps] for steps in made]


def _core_of(known: WeakKeyDictionary[K, T], key: K, make: Callable[[K], T]) -> T:
    """Return the core's counterpart of a Python object; it is made once."""
    found = known.get(key)
    if found is None:
        found = known[key] = make(key)
    return found


def _table(table: Table) -> NgramTable:
    return NgramTable(table.keys, table.values)


def _curve(curve: Curve) -> CostCurve:
    return CostCurve(curve.rows, curve.contexts, curve.seconds)
