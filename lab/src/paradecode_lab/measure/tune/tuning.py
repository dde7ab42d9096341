"""All of tuning: record, search by replay, confirm with the engine, say why."""

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
"""Methods behind which a head is tried, beside the best method without a head: a head knows
better than a table of n-grams what the model often says."""
DEFAULT = "prompt-lookup"
"""The method that users have without a profile; it is measured beside the finalists."""
HELD_OUT, FEW = 1 / 3, 24
"""Share of the prompts that only confirm the result, and number of prompts on which settings are
tried."""
FEWEST = 6
"""The fewest prompts of a workload."""
LEAST = 0.97
"""The least speed-up in a group of enough prompts; a method below it wins only if all others
are, too."""


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
    """The profile as JSON; see :class:`paradecode.methods.choice.Profile`.

    Args:
        items: the workload, at least six prompts.
        seed: decides which prompts are held out.
        costs: costs of an earlier profile, with which the search decides in the same way.
        tables: n-gram tables to try with lookup, beside the package's table for this model.
        heads: draft heads to try, alone and behind the best copying method. Replay does not rank
            them, because it would read all recorded texts with the model each time.
        stage: announces a stage and its number of steps; returns a function to call at each step.

    Raises:
        InvalidInput: for too few prompts, or a model that the methods cannot decode.
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
    """The winner without each of its parts: its replayed speed, or the measured one if a head
    drafts."""
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
    """Prompts to tune on and prompts to confirm with, every group in both as far as it can be."""
    rng = np.random.default_rng(seed)
    turns: list[tuple[int, Item]] = []
    for group in dict.fromkeys(item.group for item in items):
        mine = [item for item in items if item.group == group]
        turns += [(turn, mine[index]) for turn, index in enumerate(rng.permutation(len(mine)))]
    turns.sort(key=lambda entry: entry[0])  # Any beginning now has prompts of every group.
    ordered = [item for _, item in turns]
    held = round(len(items) * HELD_OUT)
    return ordered[:-held], ordered[-held:]


@dataclass(frozen=True)
class Confirmed:
    """A measured finalist: token-weighted speed over plain decoding, and number of equal outputs.

    Attributes:
        sizes: number of prompts of each group.
        tokens: mean length of an answer.
        suspicious: whether forwards do not explain the speed-up.
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
        """Whether it makes a group of prompts slower."""
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
    """Measure candidates beside plain decoding; returns them, the best first.

    Candidates that slow no group down come first, and of these the fastest.
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
            continue  # Every answer is one token long: there is nothing to speed up.
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
