"""The search: all drafters, the settings of the best, fusions of these, and their settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paradecode.measure.tune.candidate import Candidate, Files
from paradecode.measure.tune.scores import Scores

FIRST, SECOND = 5, 3
"""Drafters whose settings are searched, and how many of those are fused with one another."""
GAIN = 1.005
"""A setting must make decoding this much faster to be kept: replay is no more exact than that."""
STRIDES = 4
"""Steps of one climb."""
NOTHING: Files = {}


def search(
    scores: Scores,
    names: Sequence[str],
    few: Collection[str],
    many: Collection[str],
    files: Files = NOTHING,
) -> list[Candidate]:
    """Candidates, the best first.

    Args:
        names: methods to begin with.
        few: prompts on which settings are tried.
        many: prompts that decide the order of what came of it; ``few`` among them.
        files: what settings that name files may be given.
    """
    drafters = _ranked(scores, [Candidate.of(name) for name in names], few)
    tuned = _ranked(scores, [climb(scores, one, few, files) for one in drafters[:FIRST]], few)
    pairs = [
        first.fused(second)
        for first in tuned[:SECOND]
        for second in tuned
        if second.parts[0][0] != first.parts[0][0]
    ]
    fusions = [climb(scores, one, few, files) for one in _ranked(scores, pairs, few)[:SECOND]]
    return _ranked(scores, [*drafters[:FIRST], *tuned, *fusions], many)


def climb(
    scores: Scores, start: Candidate, prompts: Collection[str], files: Files = NOTHING
) -> Candidate:
    """Change one setting at a time, the best change first, while that pays."""
    best = start
    for _ in range(STRIDES):
        nearby = [one for one in best.neighbours(files) if one.valid]
        found = _ranked(scores, nearby, prompts)[:1]
        if not found or scores.speed(found[0], prompts) < GAIN * scores.speed(best, prompts):
            break
        best = found[0]
    return best


def _ranked(
    scores: Scores, candidates: Sequence[Candidate], prompts: Collection[str]
) -> list[Candidate]:
    """Without repetitions, the fastest first."""
    return sorted(dict.fromkeys(candidates), key=lambda one: -scores.speed(one, prompts))
