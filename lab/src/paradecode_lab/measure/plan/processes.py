"""Runs a plan here: each machine is a process, which runs its layers and sends on the states."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.backends.native.machine import default_threads
from paradecode.core.errors import BackendLost, InvalidInput
from paradecode.core.layers import Half, Layers, halves
from paradecode.engine.cost import CostCurve
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode_lab.measure.plan.described import VISIT, Link, Plan
from paradecode_lab.measure.plan.forecast import WIDTHS, PlanForecast, Work
from paradecode_lab.measure.plan.pieces import ATTENTION, FEED, HEAD, Anatomy, Piece

REPEATS = 15
"""Timings of each size. More are more exact and take longer."""
ALONE = "alone"
HERE = {"machines": {"here": {"threads": default_threads()}}}
"""The plan of this computer alone, as JSON."""
SMALL, LARGE = 4096, 1 << 20
"""Bytes of the two messages that time a link."""
FILLED, LEAST = 64, 1e-7
"""Tokens of a forward that fills the context, and the least seconds of a part."""
AWAKE = 0.05
"""Seconds for which a process looks for its next turn before it sleeps. A core that sleeps runs
its next visit more slowly, by an amount that depends on the host."""
PATIENCE = 120.0
"""Seconds without an answer of a process after which the run fails."""


@dataclass(frozen=True)
class Station:
    """A visit in a process: the layers that run there, and whether they end with the LM head."""

    owner: int
    layers: Layers
    head: bool


@dataclass(frozen=True)
class Flown:
    """The result of the processes: each flight's tokens, and the times at which they were known."""

    tokens: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[float, ...], ...]

    @property
    def a_token(self) -> float:
        """Seconds between two tokens of a flight: the lower quartile, as other load only adds."""
        return float(np.quantile([np.diff(own) for own in self.ends], 0.25))

    @property
    def a_second(self) -> float:
        """Tokens of all flights in a second, from the time at which each had its first one."""
        begun, ended = max(own[0] for own in self.ends), max(own[-1] for own in self.ends)
        return sum(time > begun for own in self.ends for time in own) / (ended - begun)


def check_runnable(config: ModelConfig, visits: Sequence[tuple[str, Sequence[Piece]]]) -> None:
    """Raise InvalidInput if a model cannot be divided among processes at these places."""
    if not config.writes or config.keeps_states or config.token_width:
        fix = "processes divide models that write from left to right, without states"
        raise InvalidInput("model", config.name, f"{fix} and second embeddings")
    whole = all(isinstance(one, int) for _, own in visits for one in layers_of(own))
    if not whole and any(layer.ladder or layer.beside for layer in config.stack):
        fix = "its layers' parts run side by side: place whole layers"
        raise InvalidInput("model", config.name, fix)


def layers_of(pieces: Sequence[Piece]) -> Layers:
    """Return the layers, or halves of them, that are these parts."""
    kinds: dict[int, set[str]] = {}
    for piece in pieces:
        if piece.kind in (ATTENTION, FEED):
            kinds.setdefault(piece.layer, set()).add(piece.kind)
    return tuple(
        layer if len(own) == 2 else Half(layer, "attention" if ATTENTION in own else "mlp")
        for layer, own in kinds.items()
    )


class Processes:
    """The processes. Each has the whole model in memory, and threads of its own.

    Args:
        model: name or path of the model.
        threads: machine -> number of its threads.
        room: tokens of a flight.
        flights: number of flights.
    """

    def __init__(
        self, model: str | None, threads: Mapping[str, int], room: int, flights: int = 1
    ) -> None:
        self._names, context = list(threads), get_context("spawn")
        count = len(self._names)
        ends = {(a, b): context.Pipe() for a in range(count) for b in range(a)}
        self._controls, self._processes = list[Connection](), list[Any]()
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        enough = len(usable) >= sum(threads.values())
        for index, number in enumerate(threads.values()):
            # Each process has cores of its own, if there are enough.
            cores, usable = usable[:number] if enough else [], usable[number:]
            control, inner = context.Pipe()
            peers = {b: pair[0] for (a, b), pair in ends.items() if a == index}
            peers |= {a: pair[1] for (a, b), pair in ends.items() if b == index}
            given = index, model, number, cores, room, flights, inner, peers
            process = context.Process(target=_main, args=given, daemon=True)
            process.start()
            inner.close()
            self._controls.append(control)
            self._processes.append(process)
        for connection in (each for pair in ends.values() for each in pair):
            connection.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for control in self._controls:
            control.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.terminate()

    def _answer(self, index: int) -> Any:
        """Return a process's answer; raise BackendLost if it fails or does not answer."""
        control = self._controls[index]
        with suppress(EOFError, OSError):
            if control.poll(PATIENCE):
                return control.recv()
        raise BackendLost(f"the process of machine {self._names[index]} does not answer")

    def measured(
        self, rows: Sequence[int], contexts: Sequence[int], together: bool,
        rests: Mapping[str, float],
    ) -> dict[str, dict[str, CostCurve]]:  # fmt: skip
        """Measure machine -> kind of part -> seconds of all parts of this kind.

        Args:
            together: whether all processes measure at the same time, as they will run.
            rests: machine -> seconds that it waits before a visit; 0 where it is not named.
        """
        found = dict[str, dict[str, CostCurve]]()
        order = range(len(self._names))
        for group in [list(order)] if together else [[index] for index in order]:
            for index in group:
                rest = rests.get(self._names[index], 0.0)
                self._controls[index].send(("measure", tuple(rows), tuple(contexts), rest))
            found |= {self._names[index]: self._answer(index) for index in group}
        return found

    def links(self) -> list[Link]:
        """Measure the links of all pairs of processes."""
        found = []
        for a in range(len(self._names)):
            for b in range(a):
                self._controls[a].send(("ping", b))
                small, large = self._answer(a)
                bandwidth = (LARGE - SMALL) / max(large - small, 1e-9)
                ends = self._names[a], self._names[b]
                found.append(Link(ends, bandwidth, max(0.0, small - SMALL / bandwidth)))
        return found

    def fly(
        self, visits: Sequence[tuple[str, Sequence[Piece]]], prompts: Sequence[Sequence[int]],
        passes: int,
    ) -> Flown:  # fmt: skip
        """Continue each prompt greedily by a token for each pass; nothing ends a text early."""
        stations = [
            Station(self._names.index(machine), layers_of(own), own[-1].kind == HEAD)
            for machine, own in visits
        ]
        last = stations[-1].owner
        for control in self._controls:
            control.send(("stations", stations, passes, len(prompts)))
        texts = [np.array(prompt, np.int32) for prompt in prompts]
        self._controls[stations[0].owner].send(("texts", texts))
        tokens, ends = self._answer(last)
        return Flown(tuple(map(tuple, tokens)), tuple(map(tuple, ends)))


def _main(
    index: int, model: str | None, threads: int, cores: Sequence[int], room: int, flights: int,
    control: Connection, peers: Mapping[int, Connection],
) -> None:  # fmt: skip
    """Run one process until its control is closed."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    checkpoint = open_model(model)
    backend = open_backend("auto", checkpoint.config, checkpoint.weights, threads=threads)
    worker = _Worker(backend, room, flights)
    stations, passes, kept = list[Station](), 0, list[_Turn]()
    tokens: list[list[int]] = []
    ends: list[list[float]] = []
    todo: deque[_Turn] = deque()
    awake = 0.0
    while True:
        asleep = not todo and not kept and time.perf_counter() > awake
        for ready in wait([control, *peers.values()], None if asleep else 0):
            assert isinstance(ready, Connection)
            try:
                said, *given = ready.recv()
            except (EOFError, OSError):
                return
            if said == "turn":
                todo.append(given[0])
            elif said == "echo":
                ready.send(given[0])
            elif said == "measure":
                control.send(worker.measured(*given))
            elif said == "ping":
                control.send(tuple(_ping(peers[given[0]], size) for size in (SMALL, LARGE)))
            elif said == "stations":
                stations, passes, count = given
                tokens, ends = [[] for _ in range(count)], [[] for _ in range(count)]
            else:
                todo.extend(_Turn(flight, 0, 0, text) for flight, text in enumerate(given[0]))
        todo.extend(kept)  # They were made after the others had come.
        kept.clear()
        if not todo:
            continue
        turn = todo.popleft()
        station, flight = stations[turn.visit], turn.flight
        made = worker.visit(flight, turn.start, turn.rows, station.layers, station.head)
        start, awake = turn.start, time.perf_counter() + AWAKE
        if station.head:
            tokens[flight].append(int(made[0]))
            ends[flight].append(time.perf_counter())
            if len(tokens[flight]) == passes:
                if all(len(own) == passes for own in tokens):
                    control.send((tokens, ends))
                continue
            start += len(turn.rows)
        following = _Turn(flight, (turn.visit + 1) % len(stations), start, made)
        owner = stations[following.visit].owner
        if owner == index:
            kept.append(following)
        else:
            peers[owner].send(("turn", following))


class _Turn(NamedTuple):
    """The message to a process: a flight, the number of its visit, and its rows.

    The rows are tokens, or states that the visit before it has made; ``start`` is the first one's
    position.
    """

    flight: int
    visit: int
    start: int
    rows: NDArray[Any]


class _Worker:
    """The model of one process, with pages for each flight."""

    def __init__(self, backend: Backend, room: int, flights: int) -> None:
        self._backend, self._pages = backend, -(-room // PAGE)
        backend.reserve(self._pages * flights)

    def visit(
        self, flight: int, start: int, rows: NDArray[Any], layers: Layers, head: bool
    ) -> NDArray[Any]:
        """Run layers on rows, and return their states, or the best token behind the last row."""
        config, count = self._backend.config, len(rows)
        slots = np.arange(start, start + count, dtype=np.int32)
        first = flight * self._pages
        is_text = rows.ndim == 1
        span = Span(
            pages=np.arange(first, first + self._pages, dtype=np.int32),
            tokens=rows if is_text else np.zeros(count, np.int32),
            positions=slots, slots=slots, context=start,
            logits=np.arange(count - head, count, dtype=np.int32),
            hidden=() if head else (halves(layers[-1])[0],),
            layers=None if layers == tuple(range(config.layers)) else layers,
            resume=None if is_text else rows,
        )  # fmt: skip
        (result,) = self._backend.forward([span])
        return result.logits.argmax() if head else next(iter(result.hidden.values()))

    def measured(
        self, rows: Sequence[int], contexts: Sequence[int], rest: float
    ) -> dict[str, CostCurve]:
        """Return kind of part -> seconds of all parts of this kind, and those of a visit.

        Args:
            rest: seconds before each visit, in which a core and its caches forget.
        """
        config, random = self._backend.config, np.random.default_rng(0)
        every = range(config.layers)
        attention = tuple(Half(layer, "attention") for layer in every)
        feed = tuple(Half(layer, "mlp") for layer in every)
        tried = {VISIT: attention[:1], ATTENTION: attention, FEED: feed, HEAD: ()}
        for start in range(0, max(contexts), FILLED):
            text = random.integers(0, config.vocab_size, min(FILLED, max(contexts) - start))
            self.visit(0, start, text.astype(np.int32), tuple(every), False)
        times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        states = random.standard_normal((max(rows), config.hidden_size), np.float32)
        for _ in range(REPEATS):
            for context, count, (kind, layers) in product(contexts, rows, tried.items()):
                rested = time.perf_counter() + rest
                while (begun := time.perf_counter()) < rested:
                    continue
                self.visit(0, context, states[:count], layers, kind == HEAD)
                times[kind, context, count].append(time.perf_counter() - begun)
        found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in tried}
        for context in contexts:
            typical = {kind: [float(np.quantile(times[kind, context, count], 0.25))
                              for count in rows] for kind in tried}  # fmt: skip
            # A visit of one layer has a visit's own time and a layer's.
            share = 1 / config.layers
            own = [max(LEAST, (one - share * all_) / (1 - share))
                   for one, all_ in zip(typical[VISIT], typical[ATTENTION])]  # fmt: skip
            for kind, column in typical.items():
                pure = own if kind == VISIT else [max(LEAST, t - v) for t, v in zip(column, own)]
                found[kind].append(tuple(pure))
        return {kind: CostCurve(tuple(rows), tuple(contexts), tuple(columns))
                for kind, columns in found.items()}  # fmt: skip


def _ping(peer: Connection, size: int) -> float:
    """Return half the seconds that a message and its echo take, at the median."""
    message, times = np.zeros(size, np.uint8), list[float]()
    for _ in range(REPEATS):
        begun = time.perf_counter()
        peer.send(("echo", message))
        peer.recv()
        times.append(time.perf_counter() - begun)
    return sorted(times)[REPEATS // 2] / 2


def measured_here(
    plan: Plan, name: str | None, model: Anatomy, work: Work, draft: Anatomy | None = None
) -> Plan:
    """Return the plan with measured times of the machines that are this computer."""
    drafts = plan.draft.machine if draft and plan.draft else ""
    lacking = [own for own, _ in plan.visits(model.pieces) if _unknown(plan, own, model)]
    if lacking:
        with Processes(name, _threads(plan, lacking), _room(work), 1) as fleet:
            plan = _rested(plan, fleet, model, work)
    if draft and plan.draft and _unknown(plan, drafts, draft):
        with Processes(plan.draft.model, _threads(plan, [drafts]), _room(work), 1) as fleet:
            plan = _timed(plan, fleet, draft, work, {})
    return plan


def _unknown(plan: Plan, machine: str, model: Anatomy) -> bool:
    device = plan.machines[machine]
    return device.threads > 0 and model.name not in device.measured


def _threads(plan: Plan, machines: Sequence[str]) -> dict[str, int]:
    return {name: plan.machines[name].threads for name in dict.fromkeys(machines)}


def _room(work: Work) -> int:
    return work.context + work.passes + max(WIDTHS[-1], work.rows)


def _rested(plan: Plan, fleet: Processes, model: Anatomy, work: Work) -> Plan:
    """Return the plan with times that are measured with the pauses of the plan itself.

    A first measurement is without pauses. Its simulation says how long each machine waits before a
    visit, and the second measurement waits as long, since a core's caches forget meanwhile.
    """
    plan = _timed(plan, fleet, model, work, {})
    forecast = PlanForecast(plan, model, work)
    said = forecast.outcome(work.rows)
    visits = Counter(machine for machine, _ in forecast.visits)
    seconds = said.tokens * work.batch / said.a_second
    rests = {name: seconds * (1 - said.busy[name]) / count for name, count in visits.items()}
    return _timed(plan, fleet, model, work, rests)


def _timed(
    plan: Plan, fleet: Processes, model: Anatomy, work: Work, rests: Mapping[str, float]
) -> Plan:
    """Return the plan with measured times of the processes, and of links that it does not have."""
    contexts = sorted({work.context, work.context + work.passes})
    rows = WIDTHS if work.acceptance else sorted({1, work.rows})
    curves = fleet.measured(rows, contexts, (work.queue or work.flights) > 1, rests)
    machines = dict(plan.machines)
    for name, found in curves.items():
        measured = {**machines[name].measured, model.name: found}
        machines[name] = replace(machines[name], measured=measured)
    given = {frozenset(link.ends) for link in plan.links}
    links = [link for link in fleet.links() if frozenset(link.ends) not in given]
    return replace(plan, machines=machines, links=(*plan.links, *links))


@dataclass(frozen=True)
class SplitRun:
    """A run in processes: its times, and whether its tokens are those of one process."""

    a_token: float
    a_second: float
    equal: bool


def compared(plan: Plan, name: str | None, model: Anatomy, work: Work) -> tuple[SplitRun, Plan]:
    """Run a plan here, and once more in one process; returns the plan with its measured times.

    Raises:
        InvalidInput: a machine is not this computer, or the work is more than plain decoding.
    """
    visits = plan.visits(model.pieces)
    for machine, _ in visits:
        if not plan.machines[machine].threads:
            fix = "give it threads: a run has its machines on this computer"
            raise InvalidInput(f"machines.{machine}.threads", 0, fix)
    for setting, plain in (("rows", 1), ("batch", 1), ("acceptance", 0), ("queue", 0)):
        if getattr(work, setting) != plain:
            fix = f"a run decodes plainly: leave it out, or give {plain}"
            raise InvalidInput(setting, getattr(work, setting), fix)
    config = open_model(name).config
    check_runnable(config, visits)
    random = np.random.default_rng(0)
    prompts = random.integers(0, config.vocab_size, (work.flights, work.context)).tolist()
    threads = _threads(plan, [machine for machine, _ in visits])
    with Processes(name, threads, _room(work), work.flights) as fleet:
        plan = _rested(plan, fleet, model, work)
        fleet.fly(visits, prompts, 2)  # The first forwards take memory.
        apart = fleet.fly(visits, prompts, work.passes)
    alone = {ALONE: sum(threads.values())}
    with Processes(name, alone, _room(work), work.flights) as fleet:
        whole = fleet.fly([(ALONE, model.pieces)], prompts, work.passes)
    return SplitRun(apart.a_token, apart.a_second, apart.tokens == whole.tokens), plan
