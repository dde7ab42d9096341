"""Builds the suite's cases: conversations, methods of the model's family, and batch sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.core.checks import maybe, whole
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode.methods.choice import PLAIN_DECODERS
from paradecode.methods.specs import Spec, parse
from paradecode.prompts import Messages, encoder
from paradecode_lab.measure.cases import Cases, Progress, measure_cases
from paradecode_lab.measure.machine import digest, weights_of
from paradecode_lab.measure.prompts import (
    Conversation,
    Item,
    by_turns,
    fingerprint,
    first_of_each_group,
    make_items,
)
from paradecode_lab.measure.quality import OutputScorer, distinct_outputs
from paradecode_lab.measure.results import ItemInfo, OutputKey, Results, Score
from paradecode_lab.measure.turns import Unit, units_of

DEFAULTS = {
    "autoregressive": (
        "prompt-lookup", "suffix", "token-recycling", "prompt-lookup+token-recycling",
    ),
    "diffusion": ("threshold", "factor", "freedave"),
}  # fmt: skip
MOST_BATCH = 256
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class GenerationPlan:
    """The settings of the suite's measurement.

    Attributes:
        decoders: specs of methods; if empty, a few methods of the model's family. Plain decoding is
            added as the first one.
        per_group: number of prompts of each group; None takes all.
        max_tokens: upper bound on the token limits of the prompts.
        batches: batch sizes; every method decodes all prompts at each size.
        rounds: number of repetitions.
    """

    decoders: tuple[str, ...]
    prompts: tuple[Conversation, ...]
    per_group: int | None = None
    max_tokens: int | None = None
    batches: tuple[int, ...] = (1,)
    rounds: int = 1
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(seed=0))

    def check(self) -> None:
        """Check everything that can be checked before a model is loaded; raises InvalidInput."""
        for text in self.decoders:
            parse(text)
        maybe(whole(1, 1 << 20))("per_group", self.per_group)
        maybe(whole(1, 1 << 16))("max_tokens", self.max_tokens)
        whole(1, 1000)("rounds", self.rounds)
        for size in self.batches:
            whole(1, MOST_BATCH)("batch", size)
        if not self.batches or len(set(self.batches)) < len(self.batches):
            raise InvalidInput("batch", self.batches, "give different sizes, such as 1,2,4")

    def limits(self) -> Limits:
        """Return limits of an engine that has room for the largest batch and caches no prompts."""
        # Each method has a tenant of its own, and must not lose what it learned to another tenant.
        learned = (len(self.decoders) + 16) << 26
        return Limits(batch=max(self.batches), learned_bytes=learned, prefix_cache=False)


def measure(
    llm: LLM,
    weights: Path,
    plan: GenerationPlan,
    journal: Path,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Results:
    """Run the plan, or what an interrupted run has left of it, and return the results.

    Args:
        llm: a model opened with ``settings`` and ``plan.limits()``.
        weights: file or folder of the model.
        journal: file to which each record is written as soon as it is measured.

    Raises:
        InvalidInput: the plan does not fit the model, or the journal belongs to another run.
    """
    # A prefix cache would spare the computation of some prompts, and scoring overwrites its pages.
    if llm.engine.limits.prefix_cache:
        raise InvalidInput("prefix_cache", True, "open the model with the limits of the plan")
    specs, plain = choose(llm, plan.decoders), PLAIN_DECODERS[llm.families[0]]
    items, answers, dropped = inputs(llm, plan)
    units = plan_units(items, plan)
    _check_room(llm, items, max(plan.batches))
    cases = Cases(
        specs=specs,
        references={name: plain for name in map(str, specs) if name != plain},
        items=[ItemInfo(i.id, i.prompt, i.group, len(i.token_ids), i.max_tokens) for i in items],
        units=units,
        sampling=plan.sampling,
        check=lambda item, text: is_right(text, answers[item.id]) if item.id in answers else None,
        settings={
            **settings,
            "suite": "generation",
            "items": fingerprint(items),
            "draft_model": llm.draft_model,
            "draft_weights": digest(weights_of(llm.draft_model)) if llm.draft_model else None,
            "max_tokens": plan.max_tokens,
            "temperature": plan.sampling.temperature,
            "seed": plan.sampling.seed,
            "prefix_cache": llm.engine.limits.prefix_cache,
            "weights": digest(weights),
        },
        facts={
            "rounds": plan.rounds, "batches": sorted(plan.batches), "dropped_prompts": dropped,
        },
        tenants=True,
        warm_up_tokens=WARM_UP_TOKENS,
    )  # fmt: skip
    results = measure_cases(llm, cases, journal, progress)
    return replace(results, scores=_scores(llm, items, results))


def choose(llm: LLM, wanted: Iterable[str]) -> list[Spec]:
    """Return plain decoding, then the wanted specs (by default a few of the family), each once.

    Raises:
        InvalidInput: a spec is not understood, or its method cannot decode this model.
    """
    family = llm.families[0]
    usual: tuple[str, ...] = DEFAULTS[family]
    if llm.draft_model is not None and family == "autoregressive":
        usual = (*usual, "draft-model")
    chosen: dict[str, Spec] = {}
    for text in (PLAIN_DECODERS[family], *(wanted or usual)):
        spec = parse(text)
        if spec.method.family != family:
            fix = f"{llm.model} needs {family} methods, such as {DEFAULTS[family][0]}"
            raise InvalidInput("decoder", text, fix)
        if DRAFT in spec.method.models and llm.draft_model is None:
            raise InvalidInput("draft_model", None, f"{text} needs one: name a smaller model")
        chosen[str(spec)] = spec
    return list(chosen.values())


def inputs(llm: LLM, plan: GenerationPlan) -> tuple[list[Item], dict[str, tuple[str, ...]], int]:
    """Return the items, the right answers by item id, and the number of turns that are left out.

    A turn is left out if it is too long for the model. Plain decoding answers the earlier turns of
    a conversation, so that every decoder continues the same text, which this model has written.
    """
    plain, room = PLAIN_DECODERS[llm.families[0]], llm.config.context_length
    encode = encoder(llm)

    def answer(messages: Messages, limit: int) -> str:
        ids = encode(messages)
        if len(ids) >= room:  # The turns that follow are too long as well, and are left out.
            return ""
        found = llm.complete([ids], max_tokens=limit, decoder=plain, salt="turns")[0]
        if found.error is not None:
            raise InvalidInput("prompts", messages[-1]["content"], f"plain decoding: {found.error}")
        return found.text

    chosen = first_of_each_group(plan.prompts, plan.per_group)
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


def plan_units(items: Sequence[Item], plan: GenerationPlan) -> list[Unit]:
    """Return the units of every round at every batch size.

    If the last items do not fill a batch, they are not run at that batch size.
    """
    units: list[Unit] = []
    for size in sorted(plan.batches):
        if size > len(items):
            raise InvalidInput("batch", size, f"there are {len(items)} inputs; give more, or less")
        order = list(items) if size == 1 else by_turns(items)
        for round in range(plan.rounds):
            units += [unit for unit in units_of(order, size, round) if unit.batch == size]
    return units


def _check_room(llm: LLM, items: Sequence[Item], batch: int) -> None:
    """Check that the requests of a batch need not wait for memory.

    It raises InvalidInput if they do.
    """
    longest = sorted((len(i.token_ids) + i.max_tokens for i in items), reverse=True)[:batch]
    spare = llm.engine.limits.draft_tokens + 2 * PAGE
    needed, there = sum(longest) + batch * spare, llm.engine.limits.kv_tokens
    if needed > there:
        fix = f"the engine has {there} K/V slots and {needed} are needed; lower --max-tokens"
        raise InvalidInput("batch", batch, fix)


def _scores(llm: LLM, items: Sequence[Item], results: Results) -> dict[OutputKey, Score]:
    """Return the model's own score of every distinct output.

    Models that do not write token after token give no scores.
    """
    outputs = [(record.item, record.token_ids) for record in results.records]
    if not llm.config.writes or not outputs:
        return {}
    by_id = {item.id: item for item in items}
    pages, longest = llm.engine.pools[TARGET].count, max(len(ids) for _, ids in outputs)
    scorer = OutputScorer(llm.backend, items, longest, reserved=pages)
    return {key: scorer.score(by_id[key[0]], key[1]) for key in distinct_outputs(outputs)}


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def is_right(text: str, answers: Sequence[str]) -> bool:
    """Decide whether ``text`` gives one of ``answers``.

    An answer that is a number must be the last number of the text (GSM8K's convention: the result
    comes last). Any other answer must occur in the text; case and spacing do not matter.
    """
    said = " ".join(text.split()).casefold()
    numbers = [_value(found) for found in NUMBER.findall(text)]
    for answer in answers:
        if NUMBER.fullmatch(answer.strip()):
            if numbers and numbers[-1] == _value(answer.strip()):
                return True
        elif " ".join(answer.split()).casefold() in said:
            return True
    return False


def _value(number: str) -> float:
    return float(number.replace(",", ""))
