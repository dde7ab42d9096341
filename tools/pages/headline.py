"""Writes the README's headline: a table of runs of ``make bench``, two rows for each model.

python -m tools.pages.headline bench/results/headline_135m.json \\
    bench/results/headline_1.5b.json README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.methods.choice import DEFAULT_DECODERS
from paradecode.timing.doubts import is_suspicious
from paradecode_lab.measure.figures import Figures, figures
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.results import Results, groups_of
from paradecode_lab.measure.tables import number, table, value
from tools.pages.marked import put

OWN = "paradecode-native/"
PEER, SLOWER = "ik-llama-cpp/", "llama-cpp/"
"""The peers. The first one is in the table, and an error is raised if the second one is faster."""
DEFAULT = DEFAULT_DECODERS["autoregressive"]
COPYING = ("edit", "extraction", "rag", "agent")
"""Groups of prompts whose answers repeat a part of the prompt.

They are put together, because a single group has too few prompts for a ratio.
"""
HEAD = (
    "model", "work", "prompts", "ik_llama.cpp, tokens/s", "plain", "parallel", "× ik_llama.cpp"
)  # fmt: skip


def headline(runs: Sequence[Results]) -> str:
    """Return the table, and a sentence about the machine.

    Raises:
        InvalidInput: the runs come from several machines, an engine of the table was not measured,
            other processes kept the machine busy, outputs differ, or a speed-up is impossible.
    """
    machines = {f"{run.machine.cores} cores of an {run.machine.cpu}" for run in runs}
    if len(machines) != 1:
        raise InvalidInput("results", sorted(machines), "give runs of one machine")
    said = (
        f"Measured on {machines.pop()}. *Plain* is one token a forward,\n"
        f"and *parallel* is `{DEFAULT}` with the same text. ik_llama.cpp is compiled for this\n"
        "processor, and faster on it than llama.cpp. All engines read the same file and decode in\n"
        "turns ([intervals, more engines and methods](docs/benchmarks.md))."
    )
    return f"{table(HEAD, [row for run in runs for row in _rows(run)])}\n\n{said}"


def _rows(run: Results) -> Iterator[tuple[str, ...]]:
    weights = next((e.weights for e in run.engines if e.name.startswith(OWN)), "")
    plain, fast, peer = OWN + weights, f"{OWN}{weights}+{DEFAULT}", PEER + weights
    _check(_measured(run, plain, fast)[0], fast)
    best, other = _measured(run, peer, peer, SLOWER + weights)
    assert best.total.decode is not None
    assert other.total.decode is not None
    if best.total.decode.value < other.total.decode.value:
        raise InvalidInput("results", run.model, f"put {other.name} into the table: it is faster")
    copies = {group: group in COPYING for group in groups_of(run)}
    for work, chosen in (("open text", False), ("edits, quotes, extraction", True)):
        items = tuple(item for item in run.items if copies[item.group] == chosen)
        names = {item.id for item in items}
        records = tuple(record for record in run.records if record.item in names)
        part = replace(run, items=items, records=records)
        slow, quick, other = _measured(part, peer, plain, fast, peer)
        yield (
            f"`{run.model}`", work, str(len(items)),
            *(value(each.total.decode) for each in (other, slow, quick)),
            value(quick.total.speedup),
        )  # fmt: skip


def _check(quick: Figures, name: str) -> None:
    equal, cost, over = quick.equality, quick.cost, quick.total.speedup
    assert equal is not None
    assert over is not None
    if cost is None:
        raise InvalidInput("results", name, "measure it with a worker that counts its forwards")
    if equal.same < equal.outputs:
        raise InvalidInput("results", name, f"{equal.same} of {equal.outputs} outputs are equal")
    if is_suspicious(over.low, cost.per_forward, 1.0):
        raise InvalidInput("results", name, f"{number(over.low)} times plain decoding cannot be")


def _measured(run: Results, baseline: str, *engines: str) -> list[Figures]:
    """Return the figures of engines compared with the baseline.

    It raises InvalidInput if one was disturbed.
    """
    found = {each.name: each for each in figures(run, baseline)}
    for name in (baseline, *engines):
        if name not in found or found[name].total.speedup is None:
            raise InvalidInput("results", run.model, f"measure {name}")
        if found[name].disturbed:
            raise InvalidInput("results", name, "measure it again while nothing else runs")
    return [found[name] for name in engines]


def main() -> None:
    *files, target = map(Path, sys.argv[1:])
    put(target, "headline", headline([read_results(file) for file in files]))


if __name__ == "__main__":
    main()
