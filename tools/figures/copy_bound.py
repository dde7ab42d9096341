"""How fast could a method be that copies, and always knew from where and how much?

    paradecode replay record own.replay --per-group 5 --max-tokens 192
    python -m tools.figures.copy_bound own.replay [--least 1] [--most 32]
                               [--out bench/results/copy_bound.json]

For each position of a recorded answer, the longest copy from an earlier place with the same
``--least`` tokens before it; of all ways to divide the answer into such copies, the cheapest one by
the recording's cost curve and the Python of plain decoding and of ``prompt-lookup`` as replay
predicts them. No drafter that copies can be faster, whatever its rule.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paradecode_lab.measure.replay import Recording, play
from paradecode_lab.measure.replay.outcome import ReplayOutcome
from paradecode_lab.measure.replay.recording import Request
from tools.script import options, save, show, stamped

COPYING = ("edit", "agent", "translation", "list")
DRAFTER = "prompt-lookup(budget=fixed)"


def longest_copies(request: Request, least: int, most: int) -> NDArray[np.int64]:
    """int64 [t + 1]: how much of the text from each output position on stood before."""
    text, first = request.text, len(request.prompt)
    found = np.zeros(len(text) + 1, np.int64)
    same = np.zeros(len(text) + 1, np.int64)  # Of the text from here on, with that from each place.
    for at in range(len(text) - 1, first - 1, -1):
        same = np.append(np.where(text == text[at], same[1:] + 1, 0), 0)
        places = np.arange(least, at)
        for back in range(1, least + 1):
            places = places[text[places - back] == text[at - back]]
        found[at] = min(same[places].max(initial=0), most)
    return found


def python(outcome: ReplayOutcome) -> float:
    """Seconds of a step beside its forward."""
    totals = outcome.totals()
    return totals.python_seconds / max(1, totals.forwards - totals.requests)


def seconds(
    recording: Recording, request: Request, copies: NDArray[np.int64], costs: tuple[float, float]
) -> float:
    """Seconds of the cheapest way from the first token, which the prompt's forward gave, to the
    last."""
    plain, drafted = costs
    timing, end = recording.timing, len(request.prompt) + len(request.output)
    best = np.zeros(end + 1)
    for at in range(end - 1, len(request.prompt), -1):
        best[at] = min(
            recording.curve.at(1 + size, at) + timing.forward + timing.row * size
            + (drafted if size else plain) + best[at + size + 1]
            for size in range(int(min(copies[at], end - at - 1)) + 1)
        )  # fmt: skip
    return float(best[len(request.prompt) + 1]) if len(request.output) > 1 else 0.0


def main() -> None:
    parser = options(__doc__, least=1, most=32)
    parser.add_argument("recording", type=Path)
    given = parser.parse_args()
    recording = Recording.load(given.recording)
    costs = python(play(recording, "greedy")), python(play(recording, DRAFTER))
    spent: dict[str, list[tuple[float, float]]] = {}
    for request in recording.requests:
        copies = longest_copies(request, given.least, given.most)
        both = [seconds(recording, request, given, costs) for given in (0 * copies, copies)]
        spent.setdefault(request.group, []).append((both[0], both[1]))
    groups = {group: ratio(pairs) for group, pairs in sorted(spent.items())}
    groups["copying"] = ratio([pair for name in COPYING for pair in spent.get(name, [])])
    groups["all"] = ratio([pair for pairs in spent.values() for pair in pairs])
    rows = [{"group": group, "over": over} for group, over in groups.items()]
    show(rows, {"group": "{group}", "at most, over plain": "{over:.2f}"})
    result = stamped(
        model=recording.model.name,
        prompts=len(recording.requests),
        least=given.least,
        most=given.most,
        python_seconds={"plain": costs[0], "drafted": costs[1]},
        curve=asdict(recording.curve),
        groups=groups,
    )
    save(result, given.out)


def ratio(pairs: list[tuple[float, float]]) -> float:
    """Seconds of plain decoding over those with drafts, of pairs of both."""
    after = sum(copied for _, copied in pairs)
    return sum(plain for plain, _ in pairs) / after if after else 0.0


if __name__ == "__main__":
    main()
