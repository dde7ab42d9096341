"""A whole run: round by round every endpoint has its turn, in an order drawn afresh."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import PurePath
from typing import Any

import aiohttp

from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import stamp
from paradecode.measure.suites.load.asks import Ask, arrivals, draw
from paradecode.measure.suites.load.client import ask_once, first_model, open_session
from paradecode.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from paradecode.measure.suites.load.results import (
    LoadResults,
    LoadSummary,
    Phase,
    StreamedAnswer,
    summarise,
)

Tell = Callable[[str, int], None]
"""Told (what is running, how many requests have just ended)."""

Begin = Callable[[Endpoint], None]
"""Called before an endpoint has its turn, warm-up included."""


async def drive(
    plan: LoadPlan,
    asks: list[Ask],
    key: str | None = None,
    tell: Tell = lambda what, ended: None,
    begin: Begin = lambda endpoint: None,
) -> tuple[list[Endpoint], list[Phase]]:
    """Run a plan.

    Args:
        asks: what may be asked.
        key: API key for all endpoints.
        tell: for a progress bar.
        begin: for servers that are to rest while others are measured.

    Returns:
        The endpoints with the models that answered, and everything measured.

    Raises:
        InvalidInput: if an endpoint cannot be reached, or answers no warm-up request.
    """
    phases = []
    async with open_session(plan, key) as session:
        endpoints = [
            replace(e, model=e.model or await first_model(session, e)) for e in plan.endpoints
        ]
        for number in range(plan.rounds):
            for load in plan.loads:
                order = list(endpoints)
                random.Random(f"{plan.seed}/{number}/{load}").shuffle(order)
                for endpoint in order:
                    tell(f"{endpoint.name}, {load}", 0)
                    begin(endpoint)
                    phases.append(await _phase(session, plan, asks, endpoint, load, number, tell))
    return endpoints, phases


async def _phase(
    session: aiohttp.ClientSession,
    plan: LoadPlan,
    asks: list[Ask],
    endpoint: Endpoint,
    load: OfferedLoad,
    number: int,
    tell: Tell,
) -> Phase:
    # The same for every endpoint: neither seed names it.
    warm = draw(asks, plan.warmup, f"{plan.seed}/warm-up/{number}/{load}")
    drawn = draw(asks, plan.requests, f"{plan.seed}/{number}/{load}")
    began = time.perf_counter()

    async def ask(one: Ask, due: float | None = None) -> StreamedAnswer:
        return await ask_once(session, endpoint, one, plan, began, due)

    async def ask_and_tell(one: Ask, due: float | None = None) -> StreamedAnswer:
        answer = await ask(one, due)
        tell("", 1)
        return answer

    answers = await _closed(ask, warm, load.clients or 1)
    if warm and all(answer.error for answer in answers):
        fix = f"its warm-up requests must be answered ({answers[0].error})"
        raise InvalidInput(f"--endpoint {endpoint.name}", endpoint.url, fix)
    began, busy = time.perf_counter(), time.process_time()  # Answers count from here.

    if load.clients is not None:
        answers = await _closed(ask_and_tell, drawn, load.clients)
    else:
        due = arrivals(load, plan.arrivals, len(drawn), f"{plan.seed}/{number}/{load}/arrivals")
        answers = await _open(ask_and_tell, drawn, due, began)
    client = time.process_time() - busy
    seconds = max(answer.start + answer.end for answer in answers)
    return Phase(endpoint.name, load, number, seconds, client, answers)


async def _closed(
    ask: Callable[[Ask], Awaitable[StreamedAnswer]], asks: list[Ask], clients: int
) -> list[StreamedAnswer]:
    """Each client sends its next request when the last one is answered."""
    left = iter(asks)
    answers: list[StreamedAnswer] = []

    async def client() -> None:
        for one in left:
            answers.append(await ask(one))

    await asyncio.gather(*(client() for _ in range(min(clients, len(asks)))))
    return answers


async def _open(
    ask: Callable[[Ask, float], Awaitable[StreamedAnswer]],
    asks: list[Ask],
    due: list[float],
    began: float,
) -> list[StreamedAnswer]:
    """Each request is sent when it is due, however many are under way."""

    async def at(one: Ask, when: float) -> StreamedAnswer:
        await asyncio.sleep(max(0.0, began + when - time.perf_counter()))
        return await ask(one, when)

    return await asyncio.gather(*(at(one, when) for one, when in zip(asks, due, strict=True)))


def measure(
    plan: LoadPlan,
    asks: list[Ask],
    key: str | None,
    tokenizer: str | None,
    tell: Tell,
    begin: Begin = lambda endpoint: None,
) -> tuple[LoadResults, list[LoadSummary]]:
    """Run a plan.

    Args:
        asks: what may be asked.
        key: API key for all endpoints.
        tokenizer: model whose tokenizer counts, if the plan says ``tokenizer``; None is the default
            model.
        tell, begin: see :func:`paradecode.measure.suites.load.drive.drive`.

    Raises:
        InvalidInput: if an endpoint cannot be used.
    """
    endpoints, phases = asyncio.run(drive(plan, asks, key, tell, begin))
    if plan.count == "tokenizer":
        _count(phases, tokenizer)
    now = stamp()
    settings = {
        name: value for name, value in asdict(plan).items() if name not in ("endpoints", "loads")
    }
    settings |= {"loads": list(map(str, plan.loads)), "prompts": len(asks), "commit": now["commit"]}
    results = LoadResults(
        created=now["created"],
        machine=now["machine"],
        settings=settings,
        endpoints=[_shown(endpoint) for endpoint in endpoints],
        phases=phases,
    )
    return results, summarise(phases, plan)


def _shown(endpoint: Endpoint) -> dict[str, Any]:
    """Without the folder that a server may call its model by: results are for others to read."""
    model = PurePath(endpoint.model or "")
    return {**asdict(endpoint), "model": model.name if model.is_absolute() else endpoint.model}


def _count(phases: list[Phase], model: str | None) -> None:
    """Count the tokens of every answer's text; what ends an answer is not text, and not counted."""
    from paradecode.models.catalogue import open_model

    tokenizer = open_model(model).tokenizer
    for phase in phases:
        for answer in phase.answers:
            if not answer.error:
                text = answer.text
                answer.tokens = len(tokenizer.encode(text, special=False, parse_special=False))
