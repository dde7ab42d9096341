"""A whole run: ask, count the tokens, summarise."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from paradecode.measure.machine import stamp
from paradecode.measure.suites.load.asks import Ask
from paradecode.measure.suites.load.drive import Begin, Tell, drive
from paradecode.measure.suites.load.plan import Endpoint, LoadPlan
from paradecode.measure.suites.load.results import LoadResults, Phase
from paradecode.measure.suites.load.summary import LoadSummary, summarise


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
