"""Runs a load plan: in each round every endpoint has its turn, in a new random order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import aiohttp

from paradecode.core.errors import InvalidInput
from paradecode.timing.warm_up import TOKENS
from paradecode_lab.measure.journal import Journal
from paradecode_lab.measure.prompts import Conversation, fingerprint
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record, Results
from paradecode_lab.measure.suites.load.asks import arrivals, draw
from paradecode_lab.measure.suites.load.client import ask_once, first_model, open_session
from paradecode_lab.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from paradecode_lab.measure.suites.load.summary import phase_of

Tell = Callable[[str, int], None]
"""Called with what runs now, and the number of requests that have ended since the last call."""

Begin = Callable[[Endpoint], None]
"""Called before an endpoint's turn, which begins with its warm-up."""

FREE = ("endpoints", "loads", "rounds", "slo_ttft", "slo_tpot")
"""Fields of a plan that may differ when an interrupted run is resumed."""


def measure(
    plan: LoadPlan,
    asks: Sequence[Conversation],
    key: str | None = None,
    tokenizer: str | None = None,
    journal: Path | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    tell: Tell = lambda what, ended: None,
    begin: Begin = lambda endpoint: None,
) -> Results:
    """Run a plan, or what an interrupted run has left of it, and return the results.

    Args:
        asks: the prompts to choose from; only their first turns are sent.
        key: API key for all endpoints.
        tokenizer: model whose tokenizer counts the tokens, if the plan's ``count`` is
            ``tokenizer``; None takes the default model.
        journal: file to which records are written during the run; None writes nothing.
        facts: further settings that the result reports.
        tell: called with the progress, for a progress bar.
        begin: called before an endpoint's turn, so that the caller can pause the other servers.

    Raises:
        InvalidInput: an endpoint cannot be reached or answers no warm-up request, or the journal
            belongs to another run.
    """
    settings = {name: value for name, value in asdict(plan).items() if name not in FREE}
    settings |= {"suite": "load", "prompts": len(asks), "items": fingerprint(asks)}
    kept = Journal(journal, {**settings, "tokenizer": tokenizer})
    engines = asyncio.run(_drive(plan, asks, key, _counter(plan, tokenizer), kept, tell, begin))
    loads = list(map(str, plan.loads))
    # If a kill cut a round short in the journal, its requests were made again: the last record
    # counts.
    found = {(phase_of(record), record.unit): record for record in kept.records}
    names = {engine.name for engine in engines}
    return Results(
        **kept.stamp,
        model=", ".join(dict.fromkeys(engine.weights for engine in engines)),
        settings={
            **settings, "loads": loads, **{name: getattr(plan, name) for name in FREE[2:]}, **facts,
        },
        items=tuple(ItemInfo(ask.id, ask.id, ask.group, 0, ask.max_tokens) for ask in asks),
        engines=tuple(engines),
        records=tuple(
            record
            for ((name, load, number), _), record in found.items()
            if name in names and load in loads and number < plan.rounds
        ),
    )  # fmt: skip


async def _drive(
    plan: LoadPlan,
    asks: Sequence[Conversation],
    key: str | None,
    count: Callable[[Record], None],
    journal: Journal,
    tell: Tell,
    begin: Begin,
) -> list[EngineInfo]:
    """Measure what is missing in the journal, and return the engines that answered."""
    kept = Counter(phase for phase, _ in {(phase_of(r), r.unit) for r in journal.records})
    wanted = {str(load): plan.requests_of(load) for load in plan.loads}
    done = {phase for phase, requests in kept.items() if requests == wanted.get(phase[1])}
    async with open_session(plan, key) as session:
        endpoints = [
            replace(e, model=e.model or await first_model(session, e)) for e in plan.endpoints
        ]
        engines = [_engine(endpoint, endpoints[0]) for endpoint in endpoints]
        for engine in engines:
            _check_same(journal, engine)
            journal.describe(engine)
        for number in range(plan.rounds):
            for load in plan.loads:
                order = list(endpoints)
                random.Random(f"{plan.seed}/{number}/{load}").shuffle(order)
                for endpoint in order:
                    if (endpoint.name, str(load), number) in done:
                        tell("", plan.requests_of(load))
                        continue
                    tell(f"{endpoint.name}, {load}", 0)
                    begin(endpoint)
                    records = await _phase(session, plan, asks, endpoint, load, number, tell)
                    for record in records:
                        count(record)
                        journal.keep(replace(record, text=""))
    return engines


async def _phase(
    session: aiohttp.ClientSession,
    plan: LoadPlan,
    asks: Sequence[Conversation],
    endpoint: Endpoint,
    load: OfferedLoad,
    number: int,
    tell: Tell,
) -> list[Record]:
    # Neither seed has the endpoint's name, so that all endpoints get the same requests.
    drawn = draw(asks, plan.requests_of(load), f"{plan.seed}/{number}/{load}")
    began = time.perf_counter()

    async def ask(one: Conversation, due: float | None = None) -> Record:
        return await ask_once(session, endpoint, one, plan, str(load), began, due)

    async def ask_and_tell(one: Conversation, due: float | None = None) -> Record:
        record = await ask(one, due)
        tell("", 1)
        return record

    tokens = turn = 0
    while plan.warmup and tokens < TOKENS:
        warm = draw(asks, plan.warmup, f"{plan.seed}/warm-up/{number}/{load}/{turn}")
        records = await _closed(ask, warm, load.clients or 1)
        if turn == 0 and all(record.error for record in records):
            fix = f"its warm-up requests must be answered ({records[0].error})"
            raise InvalidInput(f"--endpoint {endpoint.name}", endpoint.url, fix)
        made = sum((r.streamed.tokens or 0) for r in records if r.streamed)
        if not made:
            break
        tokens, turn = tokens + made, turn + 1
    began, busy = time.perf_counter(), time.process_time()  # Answers are measured from here on.

    if load.clients is not None:
        records = await _closed(ask_and_tell, drawn, load.clients)
    else:
        due = arrivals(load, plan.arrivals, len(drawn), f"{plan.seed}/{number}/{load}/arrivals")
        records = await _open(ask_and_tell, drawn, due, began)
    client = (time.process_time() - busy) / len(records)
    seconds = max(r.streamed.start + r.streamed.end for r in records if r.streamed) / len(records)
    for record in records:
        assert record.streamed is not None
        record.streamed.client_seconds = client
    return [
        replace(record, round=number, unit=unit, wall_seconds=seconds)
        for unit, record in enumerate(records)
    ]


async def _closed(
    ask: Callable[[Conversation], Awaitable[Record]], asks: list[Conversation], clients: int
) -> list[Record]:
    """Run a closed loop: each client sends its next request when its last one is answered."""
    left = iter(asks)
    records: list[Record] = []

    async def client() -> None:
        for one in left:
            records.append(await ask(one))

    await asyncio.gather(*(client() for _ in range(min(clients, len(asks)))))
    return records


async def _open(
    ask: Callable[[Conversation, float], Awaitable[Record]],
    asks: list[Conversation],
    due: list[float],
    began: float,
) -> list[Record]:
    """Run an open loop: each request is sent when it is due, however many wait for an answer."""

    async def at(one: Conversation, when: float) -> Record:
        await asyncio.sleep(max(0.0, began + when - time.perf_counter()))
        return await ask(one, when)

    return await asyncio.gather(*(at(one, when) for one, when in zip(asks, due, strict=True)))


def _engine(endpoint: Endpoint, first: Endpoint) -> EngineInfo:
    """Describe an endpoint as an engine of the result.

    If the model's name is a path, its folder is left out, because results are published.
    """
    folder = PurePath(endpoint.model or "")
    model = folder.name if folder.is_absolute() else endpoint.model or ""
    reference = None if endpoint is first else first.name
    settings = {"url": endpoint.url, "model": model, "body": dict(endpoint.body)}
    return EngineInfo(endpoint.name, "server", model, "plain", reference, settings=settings)


def _check_same(journal: Journal, engine: EngineInfo) -> None:
    """Check that the journal's endpoint of this name is the same one.

    It raises InvalidInput if not.
    """
    known = journal.engines.get(engine.name, engine)
    for name in ("model", "body"):
        if known.settings.get(name) != engine.settings[name]:
            raise InvalidInput(
                f"--endpoint {engine.name}", engine.settings[name],
                f"{journal.path} has answers with {name} {known.settings.get(name)!r}; "
                "remove it, or name another output",
            )  # fmt: skip


def _counter(plan: LoadPlan, model: str | None) -> Callable[[Record], None]:
    """Return a function that counts an answer's tokens, or does nothing if each server counts."""
    if plan.count == "usage":
        return lambda record: None
    from paradecode.models.catalogue import open_model

    tokenizer = open_model(model).tokenizer

    def count(record: Record) -> None:
        """Count the tokens of the text. A stop token has no text, and does not count."""
        if record.streamed is not None and not record.error:
            ids = tokenizer.encode(record.text, special=False, parse_special=False)
            record.streamed.tokens = len(ids)

    return count
