"""The suite from prompts to results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.core.errors import InvalidInput
from paradecode.core.request import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Limits
from paradecode.llm import LLM, PLAIN_DECODERS
from paradecode.measure.journal import Journal
from paradecode.measure.machine import commit, describe
from paradecode.measure.prompts import Conversation, Item, Messages, first_of_each_group, make_items
from paradecode.measure.provenance import digest, versions
from paradecode.measure.quality import OutputScorer, distinct_outputs
from paradecode.measure.results import EngineInfo, ItemInfo, Results, Score
from paradecode.measure.suites.generation.methods import choose
from paradecode.measure.suites.generation.play import Sampling
from paradecode.measure.suites.generation.run import run_all, units_of
from paradecode.methods.registry import Spec, parse

MOST_BATCH = 256


@dataclass(frozen=True)
class GenerationPlan:
    """What to measure.

    Attributes:
        decoders: specs, a few of the model's family if empty; plain decoding comes first.
        prompts: conversations.
        per_group: how many of each group; None takes all.
        max_tokens: upper bound on the prompts' own.
        batches: how many requests run together; everything runs at each size.
        rounds: repetitions.
        sampling: temperature and seed.
    """

    decoders: tuple[str, ...]
    prompts: tuple[Conversation, ...]
    per_group: int | None = None
    max_tokens: int | None = None
    batches: tuple[int, ...] = (1,)
    rounds: int = 1
    sampling: Sampling = field(default_factory=Sampling)

    def check(self) -> None:
        """Raise InvalidInput for what can be refused before a model is loaded."""
        for text in self.decoders:
            parse(text)
        for name, value, high in (
            ("per_group", self.per_group, 1 << 20), ("max_tokens", self.max_tokens, 1 << 16),
            ("rounds", self.rounds, 1000), *(("batch", size, MOST_BATCH) for size in self.batches),
        ):  # fmt: skip
            if value is not None and not 1 <= value <= high:
                raise InvalidInput(name, value, f"give a whole number from 1 to {high}")
        if not self.batches or len(set(self.batches)) < len(self.batches):
            raise InvalidInput("batch", self.batches, "give different sizes, such as 1,2,4")
        SamplingParams(temperature=self.sampling.temperature, seed=self.sampling.seed)

    def limits(self) -> Limits:
        """An engine with room for the largest batch, that computes every prompt in full."""
        tenants = max(64, len(self.decoders) + 16)
        return Limits(batch=max(self.batches), tenants=tenants, prefix_cache=False)


def measure(
    llm: LLM,
    weights: Path,
    plan: GenerationPlan,
    journal: Path,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> Results:
    """Run the plan, or what an interrupted run has left of it.

    Args:
        llm: opened with ``settings`` and ``plan.limits()``.
        weights: its file or folder.
        journal: file of the answers as they come.
        progress: told (generations that are new, generations in all).

    Raises:
        InvalidInput: the plan does not fit the model, or the journal is another run's.
    """
    if llm.engine.limits.prefix_cache:  # It would spare some prompts, and scoring overwrites it.
        raise InvalidInput("prefix_cache", True, "open the model with the limits of the plan")
    specs = choose(llm, plan.decoders)
    items, answers, dropped = inputs(llm, plan)
    units = {size: units_of(items, size, answers) for size in sorted(plan.batches)}
    _check_room(llm, items, max(plan.batches))
    own = {
        **settings,
        "suite": "generation",
        "backend": llm.backend.name,
        "draft_model": llm.draft_model,
        "max_tokens": plan.max_tokens,
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "prefix_cache": llm.engine.limits.prefix_cache,
        "weights": digest(weights),
    }
    kept = Journal(journal, {"model": llm.model, "items": _digest(items), **own})
    failed = run_all(llm, specs, units, plan.rounds, plan.sampling, kept, progress)
    asked = {(str(spec), size) for spec in specs for size in plan.batches}
    # A batch that a kill has cut in the journal was run again: the last of two records counts.
    records = {
        (r.engine, r.batch, r.round, r.item): r
        for r in kept.records if (r.engine, r.batch) in asked and r.round < plan.rounds
    }  # fmt: skip
    outputs = [(r.item, r.token_ids) for r in records.values()]
    return Results(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit(Path(__file__).parent),
        model=llm.model,
        machine=describe(),
        settings={**own, "rounds": plan.rounds, "batches": sorted(plan.batches),
                  "dropped_prompts": dropped},
        items=tuple(
            ItemInfo(i.id, i.prompt, i.group, len(i.token_ids), i.max_tokens) for i in items
        ),
        engines=tuple(_info(llm, spec, failed.get(str(spec), "")) for spec in specs),
        records=tuple(records.values()),
        scores=_scores(llm, items, outputs),
    )  # fmt: skip


def inputs(llm: LLM, plan: GenerationPlan) -> tuple[list[Item], dict[str, tuple[str, ...]], int]:
    """Token ids of every turn, what is right, and how many turns are too long for the model.

    Earlier turns of a conversation carry plain decoding's own answers, so that every decoder is
    given the same text, and text that this model would write.
    """
    plain, room = PLAIN_DECODERS[llm.families[0]], llm.config.context_length

    def encode(messages: Messages) -> list[int]:
        if llm.chat_template is not None:
            return llm.chat_tokens(messages)
        return llm.tokenizer.encode("\n\n".join(message["content"] for message in messages))

    def answer(messages: Messages, limit: int) -> str:
        ids = encode(messages)
        if len(ids) >= room:  # The turns that follow are too long as well, and are dropped.
            return ""
        found = llm.generate([ids], max_tokens=limit, decoder=plain, salt="turns")[0]
        if found.error is not None:
            raise InvalidInput("prompts", messages[-1]["content"], f"plain decoding: {found.error}")
        return found.text

    chosen: Sequence[Conversation] = plan.prompts
    if plan.per_group is not None:
        chosen = first_of_each_group(chosen, plan.per_group)
    items: list[Item] = []
    answers, dropped = {}, 0
    for prompt in chosen:
        made = make_items([prompt], encode, answer, plan.max_tokens)
        fitting = [item for item in made if len(item.token_ids) + item.max_tokens <= room]
        dropped += len(prompt.turns) - len(fitting)
        items += fitting
        if prompt.answers and len(fitting) == len(prompt.turns):
            answers[fitting[-1].id] = prompt.answers
    if not items:
        raise InvalidInput("prompts", len(chosen), f"none fits the context of {room} tokens")
    return items, answers, dropped


def _check_room(llm: LLM, items: Sequence[Item], batch: int) -> None:
    """A batch whose requests had to wait for memory would not be one."""
    longest = sorted((len(i.token_ids) + i.max_tokens for i in items), reverse=True)[:batch]
    spare = llm.engine.limits.draft_tokens + 2 * PAGE
    needed, there = sum(longest) + batch * spare, llm.engine.limits.kv_tokens
    if needed > there:
        fix = f"the engine has {there} K/V slots and {needed} are needed; lower --max-tokens"
        raise InvalidInput("batch", batch, fix)


def _info(llm: LLM, spec: Spec, failure: str) -> EngineInfo:
    name, plain = str(spec), PLAIN_DECODERS[llm.families[0]]
    return EngineInfo(
        name=name,
        peer="paradecode",
        weights=llm.backend.name,
        mode="plain" if name == plain else name,
        reference=None if name == plain else plain,
        versions=versions(),
        settings={"decoder": name},
        status="failed" if failure else "ok",
        reason=failure,
        guarantee=spec.guarantee,
    )


def _scores(
    llm: LLM, items: Sequence[Item], outputs: Sequence[tuple[str, tuple[int, ...]]]
) -> dict[tuple[str, tuple[int, ...]], Score]:
    """What the model itself says of every distinct output; nothing of models without an order."""
    if llm.config.attention != "causal" or not outputs:
        return {}
    by_id = {item.id: item for item in items}
    pages, longest = llm.engine.pools[TARGET].count, max(len(ids) for _, ids in outputs)
    oracle = OutputScorer(llm.backend, items, longest, reserved=pages)
    return {key: oracle.score(by_id[key[0]], key[1]) for key in distinct_outputs(outputs, ())}


def _digest(items: Sequence[Item]) -> str:
    text = json.dumps([asdict(item) for item in items])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
