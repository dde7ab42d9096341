"""The whole tuning: record a workload, search by replay, confirm with the engine, and explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.methods.choice import SCHEMA
from paradecode.methods.draft.ngram_table import packaged
from paradecode.timing.warm_up import warm_up
from paradecode_lab.measure.machine import stamp
from paradecode_lab.measure.paired import (
    beyond_forwards,
    decode_by_turns,
    equal,
    generated_and_forwards,
    speed_up,
)
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.replay import record, replayable
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.too_short import ENOUGH_OF_A_GROUP, too_short
from paradecode_lab.measure.tune.candidate import CandidateMethod, with_head
from paradecode_lab.measure.tune.search import PLAIN, Costs, Scores, search

FINALISTS = 3
COPYING = ("suffix", "prompt-lookup")
"""Copying methods. A head is tried fused with each of them.

A head knows better than a table of n-grams what the model often says.
"""
DEFAULT = "prompt-lookup"
"""The method that users get without a profile; it is measured along with the finalists."""
HELD_OUT, FEW = 1 / 3, 24
"""Share of the prompts that only confirm the result.

The second value is the number of prompts on which settings are tried.
"""
FEWEST = 6
"""The fewest prompts that a workload may have."""
LEAST = 0.97
"""The least speed-up that a method must reach in each group of enough prompts.

A method that does not reach it wins only if no other method reaches it either.
"""


def tune(
    llm: LLM,
    items: Sequence[Item],
    *,
    seed: int = 0,
    costs: Costs | None = None,
    tables: Sequence[str] = (),
    heads: Sequence[str] = (),
    stage: Callable[[str, int | None], Callable[[], None]] = lambda title, total: lambda: None,
) -> dict[str, Any]:
    """Tune for a workload, and return the profile as JSON.

    Args:
        items: the workload, at least six prompts.
        seed: seed of the choice of held-out prompts.
        costs: costs from an earlier profile, which make the search decide in the same way.
        tables: n-gram tables to try with lookup, beside the package's table for this model.
        heads: draft heads to try, alone and fused after copying methods. Replay does not rank them,
            because it would read all recorded texts with the model each time.
        stage: called with the title and the number of steps of each stage; returns a function that
            is called after each step.

    Raises:
        InvalidInput: there are too few prompts, or the methods cannot decode the model.
    """
    if len(items) < FEWEST:
        raise InvalidInput("workload", len(items), f"give at least {FEWEST} prompts")
    tuning, held_out = split(items, seed)
    stage("recording", None)
    recording = record(llm, tuning)
    if costs is None:
        costs = Costs(recording.curve, recording.timing)
    recording = replace(recording, curve=costs.curve, timing=costs.timing)
    many = [item.id for item in tuning]
    few = many[:FEW]
    scores = Scores(recording, costs.python, stage("searching", None))
    own = packaged(llm.config.name)
    files = {"prompt-lookup.table": ((own,) if own else ()) + tuple(tables)}
    ranked = search(scores, replayable(recording), few, many, files)
    default = CandidateMethod(((DEFAULT, (("table", own),) if own else ()),))
    finalists = [*ranked[:FINALISTS], default]
    trained = [one for head in heads for one in with_head(head, dtype="q4")]
    behind = [finalists[0], default, *map(CandidateMethod.of, COPYING)]
    for one in trained:
        finalists += [one, *(copying.fused(one) for copying in behind)]
    finalists = list(dict.fromkeys(finalists))
    step = stage("confirming", len(held_out) * (len(finalists) + 1))
    confirmed = confirm(llm, held_out, finalists, step)
    if not confirmed:
        raise InvalidInput("workload", len(items), "give prompts with longer answers")
    best, now = confirmed[0], stamp()
    return {
        "schema": SCHEMA,
        "decoder": str(best.candidate),
        "model": llm.model,
        "backend": llm.backend.name,
        "machine": asdict(now["machine"]),
        "date": now["created"][:10],
        "commit": now["commit"],
        "seed": seed,
        "prompts": {"tuning": many, "held_out": [item.id for item in held_out]},
        "why": _why(best, confirmed, scores, many),
        "candidates": [
            {"decoder": str(one), "predicted_speed_up": scores.speed_up(one, many)}
            for one in ranked
        ],
        "measured": [_measured(one, scores.speed_up(one.candidate, many)) for one in confirmed],
        "too_short": too_short(
            len(held_out), best.tokens,
            {str(one.candidate): one.speed_up for one in confirmed},
        ),
        "costs": costs.record(),
    }  # fmt: skip


def _why(
    best: Confirmed, confirmed: Sequence[Confirmed], scores: Scores, many: Sequence[str]
) -> list[dict[str, Any]]:
    """Return for each part of the winner how fast the winner is without it.

    Replay gives the speed; if a head drafts, the measurements of the finalists give it.
    """
    played, found = scores.speed(best.candidate, many), []
    measured = {one.candidate: one.speed_up.value for one in confirmed}
    for part, rest in best.candidate.without():
        if played and rest.valid:
            without, factor = scores.speed_up(rest, many), played / (scores.speed(rest, many) or 1)
        elif rest in measured:
            without, factor = measured[rest], best.speed_up.value / measured[rest]
        else:
            continue
        found.append({"part": part, "speed_up_without": without, "factor": factor})
    return found


def split(items: Sequence[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Split prompts into those to tune on and those to confirm with, group by group if possible."""
    rng = np.random.default_rng(seed)
    turns: list[tuple[int, Item]] = []
    for group in dict.fromkeys(item.group for item in items):
        mine = [item for item in items if item.group == group]
        turns += [(turn, mine[index]) for turn, index in enumerate(rng.permutation(len(mine)))]
    turns.sort(key=lambda entry: entry[0])  # Any prefix of this order has prompts of every group.
    ordered = [item for _, item in turns]
    held = round(len(items) * HELD_OUT)
    return ordered[:-held], ordered[-held:]


@dataclass(frozen=True)
class Confirmed:
    """A finalist that the engine has measured.

    Attributes:
        speed_up: decode speed over plain decoding's, in which all tokens have the same weight.
        groups: group -> speed-up.
        sizes: number of prompts of each group.
        tokens: mean number of tokens of an answer.
        suspicious: whether the speed-up is larger than the saved forwards can explain.
        equal: number of outputs that equal plain decoding's.
    """

    candidate: CandidateMethod
    speed_up: Interval
    groups: dict[str, Interval]
    sizes: dict[str, int]
    equal: int
    prompts: int
    tokens: float
    tokens_a_forward: float
    suspicious: bool

    @property
    def slows(self) -> bool:
        """True if the method makes a group of prompts slower."""
        return any(
            found.value < LEAST and self.sizes[group] >= ENOUGH_OF_A_GROUP
            for group, found in self.groups.items()
        )


def confirm(
    llm: LLM,
    items: Sequence[Item],
    candidates: Sequence[CandidateMethod],
    progress: Callable[[], None] = lambda: None,
) -> list[Confirmed]:
    """Measure candidates beside plain decoding, and return them, the best first.

    Candidates that make no group slower come first; otherwise the faster candidate comes first.
    """
    specs = [str(candidate) for candidate in candidates]
    warm_up(llm, specs)
    runs = decode_by_turns(llm, items, [PLAIN, *specs], salt="tune", progress=progress)
    groups = Counter(item.group for item in items)
    found = []
    for candidate, spec in zip(candidates, specs, strict=True):
        overall = speed_up(runs, spec, PLAIN)
        by_group = {group: speed_up(runs, spec, PLAIN, group) for group in groups}
        if overall is None:
            continue  # Every answer is one token long, so there is nothing to speed up.
        measured = {group: value for group, value in by_group.items() if value is not None}
        generated, forwards = generated_and_forwards(runs, spec)
        found.append(
            Confirmed(
                candidate, overall, measured, groups, equal(runs, spec, PLAIN), len(items),
                generated / len(items), generated / forwards, beyond_forwards(runs, spec, PLAIN),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.slows, -one.speed_up.value))


def _measured(one: Confirmed, predicted: float) -> dict[str, Any]:
    return {
        "decoder": str(one.candidate),
        "speed_up": asdict(one.speed_up),
        "tokens_a_forward": one.tokens_a_forward,
        "suspicious": one.suspicious,
        "groups": {
            group: {**asdict(value), "prompts": one.sizes[group]}
            for group, value in one.groups.items()
        },
        "equal_to_plain": one.equal,
        "prompts": one.prompts,
        "predicted_speed_up": predicted,
    }
