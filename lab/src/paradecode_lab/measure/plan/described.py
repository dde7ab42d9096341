"""A plan: machines, the links between them, and which machine has which parts of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from paradecode.core.checks import (
    Check,
    build,
    checked,
    listed,
    mapping,
    maybe,
    meant,
    nested,
    number,
    one_of,
    text,
    whole,
)
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve
from paradecode_lab.measure.plan.pieces import ATTENTION, FEED, HEAD, KINDS, Anatomy, Piece

MOST_STAGES, MOST_NAME, MOST_SIZES = 4096, 64, 256
VISIT = "visit"
MEASURED = (VISIT, ATTENTION, FEED, HEAD)
SPEED, TIME = number(0, 1e21, above=True), number(0, 1e6)


def _measured(name: str, value: Any) -> dict[str, dict[str, CostCurve]]:
    """Accept measured curves by model and kind, as `paradecode plan --json` writes them."""
    found: dict[str, dict[str, CostCurve]] = {}
    for model, curves in mapping(name, value).items():
        place = f"{name}.{model}"
        if set(mapping(place, curves)) != set(MEASURED):
            raise InvalidInput(place, list(curves), f"give curves of {', '.join(MEASURED)}")
        found[model] = {kind: _curve(f"{place}.{kind}", each) for kind, each in curves.items()}
    return found


def _curve(name: str, value: Any) -> CostCurve:
    raw = mapping(name, value)
    times = listed(listed(TIME, MOST_SIZES), MOST_SIZES)(f"{name}.seconds", raw.get("seconds"))
    known = {key: each for key, each in raw.items() if key != "seconds"}
    sizes: _Sizes = build(_Sizes, known, name)
    curve = CostCurve(sizes.rows, sizes.contexts, tuple(map(tuple, times)))
    if not curve.sound:
        fix = "give a time above 0 for each number of rows and each context, which ascend"
        raise InvalidInput(name, value, fix)
    return curve


@dataclass(frozen=True)
class _Sizes:
    rows: tuple[int, ...]
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Device:
    """A machine: described by its speeds, or measured.

    Attributes:
        bandwidth: bytes that it reads from its memory in a second.
        operations: additions and multiplications that it makes in a second.
        memory: its bytes of memory; 0 means that they are not checked.
        overhead: seconds of a visit besides its parts.
        threads: if not 0, it is this computer with so many threads, and is measured.
        measured: model -> kind of part -> seconds of all of the model's parts of this kind, and
            ``visit`` -> seconds of a visit besides its parts.
    """

    bandwidth: float = checked(number(0, 1e21), 0.0)
    operations: float = checked(number(0, 1e21), 0.0)
    memory: float = checked(number(0, 1e18), 0.0)
    overhead: float = checked(TIME, 0.0)
    threads: int = checked(whole(0, 1024), 0)
    measured: Mapping[str, Mapping[str, CostCurve]] = field(
        default_factory=dict, metadata={"check": _measured}
    )

    def check(self, name: str, model: str | None = None) -> None:
        """Raise InvalidInput unless its times are known: those of ``model``, if it is given."""
        known = self.threads or self.measured if model is None else model in self.measured
        for speed in () if known else ("bandwidth", "operations"):
            if not getattr(self, speed):
                fix = f"give its {speed} in a second, or threads to measure this computer"
                raise InvalidInput(f"machines.{name}.{speed}", None, fix)

    def seconds(
        self, model: Anatomy, pieces: Sequence[Piece], rows: int, context: int, sequences: int = 1
    ) -> float:
        """Return the seconds of a visit, in which some parts of a model run one after the other.

        A described machine reads the bytes of a part, or makes its operations, whichever takes
        longer. On a measured one, parts of one kind share the measured time by their bytes.
        """
        curves = self.measured.get(model.name)
        if curves is None:
            return self.overhead + sum(
                max(each.nbytes(rows, context, sequences) / self.bandwidth,
                    each.operations(rows, context, sequences) / self.operations)
                for each in pieces
            )  # fmt: skip
        shares = dict.fromkeys((*KINDS, VISIT), 0.0) | {VISIT: 1.0}
        for each in pieces:
            shares[each.kind] += each.nbytes(1, context) / model.whole(context)[each.kind]
        every = rows * sequences
        return sum(shares[kind] * curve.at(every, context) for kind, curve in curves.items())


@dataclass(frozen=True)
class Link:
    """A connection of two machines, which carries one message at a time in each direction.

    Attributes:
        ends: the names of the two machines.
        bandwidth: bytes a second.
        latency: seconds until the first byte arrives.
    """

    ends: tuple[str, ...]
    bandwidth: float = checked(SPEED)
    latency: float = checked(TIME, 0.0)


@dataclass(frozen=True)
class PlacedLayers:
    """Layers on a machine.

    Attributes:
        layers: their numbers from 0, such as ``0-14`` or ``0-3,8``.
        part: ``all``, or only ``attention`` (with parts that keep a state) or ``feed`` of them.
    """

    machine: str = checked(text(MOST_NAME, 1))
    layers: str = checked(text(1000, 1))
    part: str = checked(one_of("all", ATTENTION, FEED), "all")


@dataclass(frozen=True)
class DraftingMachine:
    """The machine that drafts, and the model with which it does.

    Attributes:
        model: a small model; empty: drafts cost nothing, as those that copy.
    """

    machine: str = checked(text(MOST_NAME, 1))
    model: str = checked(text(4096), "")


def _devices(name: str, value: Any) -> dict[str, Device]:
    found = {}
    for own, each in mapping(name, value).items():
        text(MOST_NAME, 1)(f"{name}: name", own)
        found[own] = build(Device, each, f"{name}.{own}")
        found[own].check(own)
    if not found:
        raise InvalidInput(name, value, "describe at least one machine")
    return found


def _tuple(kind: type) -> Check:
    entries = listed(nested(kind), MOST_STAGES)
    return lambda name, value: tuple(entries(name, value))


@dataclass(frozen=True)
class Plan:
    """Machines and a placement.

    Attributes:
        machines: name -> machine.
        stages: which machine has which layers; without them, the only machine has all.
        links: the connections of machines.
        head: the machine with the LM head; by default that of the last layer.
        draft: who drafts; None: the machine of the first layer, at no cost.
    """

    machines: Mapping[str, Device] = checked(_devices)
    stages: tuple[PlacedLayers, ...] = checked(_tuple(PlacedLayers), ())
    links: tuple[Link, ...] = checked(_tuple(Link), ())
    head: str = checked(text(MOST_NAME), "")
    draft: DraftingMachine | None = checked(maybe(nested(DraftingMachine)), None)

    def __post_init__(self) -> None:
        for index, link in enumerate(self.links):
            if len(link.ends) != 2 or link.ends[0] == link.ends[1]:
                raise InvalidInput(f"links[{index}].ends", link.ends, "name two machines")
            for end in link.ends:
                self._known(f"links[{index}].ends", end)
        for index, stage in enumerate(self.stages):
            self._known(f"stages[{index}].machine", stage.machine)
        if self.head:
            self._known("head", self.head)
        if self.draft:
            self._known("draft.machine", self.draft.machine)
        if not self.stages and len(self.machines) > 1:
            fix = "say which machine has which layers"
            raise InvalidInput("stages", None, fix)

    def _known(self, where: str, machine: str) -> None:
        if machine not in self.machines:
            raise InvalidInput(where, machine, meant(machine, self.machines))

    def link(self, start: str, end: str) -> Link:
        """Return the link between two machines; raise InvalidInput if there is none."""
        found = next((each for each in self.links if {start, end} == set(each.ends)), None)
        if found is None:
            fix = "describe this link: ends, bandwidth and latency"
            raise InvalidInput("links", f"{start}, {end}", fix)
        return found

    def visits(self, pieces: Sequence[Piece]) -> list[tuple[str, list[Piece]]]:
        """Return the machines to which a row comes one after the other, each with the parts there.

        Raises:
            InvalidInput: a part is on no machine, or on two.
        """
        layers = pieces[-1].layer
        owners: dict[tuple[int, str], str] = {}
        kinds = {(piece.layer, piece.kind) for piece in pieces}
        only = next(iter(self.machines))
        for index, stage in enumerate(self.stages or (PlacedLayers(only, f"0-{layers - 1}"),)):
            for layer in numbers(stage.layers, layers, f"stages[{index}].layers"):
                for kind in (ATTENTION, FEED) if stage.part == "all" else (stage.part,):
                    if (layer, kind) in owners:
                        said = f"{owners[layer, kind]} and {stage.machine} have its {kind}"
                        raise InvalidInput(
                            f"stages[{index}].layers", layer, f"{said}: place it once"
                        )
                    if (layer, kind) in kinds:
                        owners[layer, kind] = stage.machine
        for layer, kind in sorted(kinds - owners.keys()):
            if 0 <= layer < layers:
                raise InvalidInput("stages", f"layer {layer}", f"place its {kind} on a machine")
        inner = [owners[piece.layer, piece.kind] for piece in pieces[1:-1]]
        machines = [inner[0], *inner, self.head or inner[-1]]
        grouped = groupby(zip(machines, pieces), key=lambda pair: pair[0])
        return [(machine, [piece for _, piece in own]) for machine, own in grouped]


def numbers(spelt: str, count: int, where: str) -> Iterator[int]:
    """Yield the numbers that a text such as ``0-14,20`` names, all below ``count``."""
    for run in spelt.split(","):
        found = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", run)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < count:
            fix = f"the model has layers 0 to {count - 1}; give some, such as 0-{count - 1}"
            raise InvalidInput(where, spelt, fix)
        yield from range(first, last + 1)
