"""Chooses prefixes where the law is tested: a likely, not certain, draft and few continuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Backend
from paradecode.core.decoder import TARGET
from paradecode.core.logits import Warp
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import ROOT
from paradecode_lab.measure.certificate.law import LEAST, Law, Word, enumerate_law
from paradecode_lab.measure.certificate.plan import Trial
from paradecode_lab.measure.certificate.requests import request, rows_after, running, serve

DEPTH = 3
"""Number of tokens whose joint law is tested."""
ROOM = 9
"""Number of tokens that each request may generate, which bounds the size of its drafts.

The request is cancelled after its first ``DEPTH`` tokens.
"""
LONGEST = 16 * PAGE + 1
IDEAL = 0.65
"""Probability of the first draft token at which a wrong acceptance rule is easiest to notice."""
LIKELY, CERTAIN = 0.1, 0.95
POOLED = 0.75
"""The largest probability that a law may leave to continuations that were not enumerated."""
TRIED = 16
"""Number of candidate prefixes that are tried for each place that is wanted.

More candidates give better places, and take longer.
"""
BATCH = 16


@dataclass(frozen=True)
class LawPlace:
    """A prefix after which the law is tested.

    Attributes:
        text: name of the text that contains the prefix.
        prompt: token ids of the prefix.
        draft: the target's probability of the first draft token there.
        law: law of the ``DEPTH`` tokens that follow.
    """

    text: str
    prompt: tuple[int, ...]
    draft: float
    law: Law


@dataclass(frozen=True)
class _Prefix:
    text: str
    prompt: tuple[int, ...]
    top: dict[int, float]


def find_places(trial: Trial, texts: Sequence[tuple[str, Sequence[int]]]) -> list[LawPlace]:
    """Choose at most ``plan.places`` places, the best first, each from another text.

    A prefix ends one token after a page of the cache. If the page is cached, a request computes
    only one row of its prompt.

    Args:
        texts: name and token ids of each text, which is a prompt with its output.
    """
    plan, backend = trial.plan, trial.engine.models[TARGET]
    warp = Warp(plan.temperature)
    ended = trial.counter("places for the law", len(texts) + plan.places)
    candidates: list[_Prefix] = []
    for name, tokens in texts:
        candidates += _candidates(backend, name, tokens, warp)
        ended()
    candidates.sort(key=lambda one: abs(max(one.top.values()) - IDEAL))
    places: list[LawPlace] = []
    for draft, one in _drafted(trial, candidates[: TRIED * plan.places]):
        if len(places) == plan.places:
            break
        if any(place.text == one.text for place in places):
            continue

        def following(word: Word, prompt: tuple[int, ...] = one.prompt) -> NDArray[np.float64]:
            text = [*prompt, *word]
            return rows_after(backend, text, [len(text)]).probabilities(warp)[0]

        law = enumerate_law(following, DEPTH, LEAST / plan.samples)
        if law.pooled <= POOLED and len(law.cells) > 2:
            places.append(LawPlace(one.text, one.prompt, draft, law))
            ended()
    return places


def _candidates(backend: Backend, name: str, tokens: Sequence[int], warp: Warp) -> list[_Prefix]:
    lengths = list(range(PAGE + 1, min(len(tokens), LONGEST) + 1, PAGE))
    if not lengths:
        return []
    rows = rows_after(backend, tokens[: lengths[-1]], lengths).probabilities(warp)
    found = []
    for length, p in zip(lengths, rows, strict=True):
        best = np.argsort(-p)[:8]
        if LIKELY <= p[best[0]] <= CERTAIN:
            top = dict(zip(best.tolist(), p[best].tolist(), strict=True))
            found.append(_Prefix(name, tuple(tokens[:length]), top))
    return found


def _drafted(trial: Trial, candidates: Sequence[_Prefix]) -> list[tuple[float, _Prefix]]:
    """Return the candidates where the method drafts a likely token first, with its probability.

    The candidates whose probability is closest to ``IDEAL`` come first.
    """
    engine, plan = trial.engine, trial.plan
    params = SamplingParams(ROOM, temperature=plan.temperature, seed=plan.seed, ignore_eos=True)
    requests = [request(one.prompt, trial.claim.make, params, "places") for one in candidates]
    with running(engine, costs=False, batch=BATCH):
        sequences = serve(engine, requests, enough=DEPTH)
    found = []
    for one, sequence in zip(candidates, sequences, strict=True):
        tree = sequence.trace[0].tree if sequence.trace else None
        if tree is not None and len(tree):
            draft = one.top.get(int(tree.tokens[tree.children(ROOT)[0]]), 0.0)
            if LIKELY <= draft <= CERTAIN:
                found.append((draft, one))
    return sorted(found, key=lambda entry: abs(entry[0] - IDEAL))
