"""The README's headline: a table of runs of ``make bench`` on one machine, a row for each model.

python -m tools.pages.headline bench/results/headline_135m.json \\
    bench/results/headline_1.5b.json README.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.methods.choice import DEFAULT_DECODERS
from paradecode.timing.doubts import is_suspicious
from paradecode_lab.measure.figures import Figures, figures
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.tables import number, table, value
from tools.pages.marked import put

OWN = "paradecode-native/"
PEERS = {"llama.cpp": "llama-cpp/", "ik_llama.cpp": "ik-llama-cpp/"}
DEFAULT = DEFAULT_DECODERS["autoregressive"]
HEAD = (
    "model", "plain tokens/s", f"`{DEFAULT}` tokens/s", *(f"× {peer}" for peer in PEERS),
    "tokens a forward", "equal outputs",
)  # fmt: skip


def headline(runs: Sequence[Results]) -> str:
    """The table, and what machine it is from.

    Raises:
        InvalidInput: the runs are of several machines, an engine of the table was not measured,
            others kept the machine busy, outputs differ, or a speed-up cannot be.
    """
    machines = {f"{run.machine.cores} cores of {run.machine.cpu}" for run in runs}
    if len(machines) != 1:
        raise InvalidInput("results", sorted(machines), "give runs of one machine")
    days = sorted(run.created[:10] for run in runs)
    said = (
        f"On {machines.pop()}, {' to '.join(dict.fromkeys((days[0], days[-1])))}. Both ratios,\n"
        f"of plain decoding and of `{DEFAULT}`, are to the peer's plain decoding of the same file\n"
        "([how it was measured](docs/benchmarks.md#the-headline))."
    )
    return f"{table(HEAD, map(_row, runs))}\n\n{said}"


def _row(run: Results) -> tuple[str, ...]:
    weights = next((e.weights for e in run.engines if e.name.startswith(OWN)), "")
    plain, fast = OWN + weights, f"{OWN}{weights}+{DEFAULT}"
    slow, quick = _measured(run, plain, plain, fast)
    ratios = [_measured(run, prefix + weights, plain, fast) for prefix in PEERS.values()]
    equal, cost, over = quick.equality, quick.cost, quick.total.speedup
    assert equal is not None
    assert over is not None
    if cost is None:
        raise InvalidInput("results", fast, "measure it with a worker that counts its forwards")
    if equal.same < equal.outputs:
        raise InvalidInput("results", fast, f"{equal.same} of {equal.outputs} outputs are equal")
    if is_suspicious(over.low, cost.per_forward, 1.0):
        raise InvalidInput("results", fast, f"{number(over.low)} times plain decoding cannot be")
    return (
        f"`{run.model}`", value(slow.total.decode), value(quick.total.decode),
        *(" and ".join(value(each.total.speedup) for each in both) for both in ratios),
        number(cost.per_forward), f"{equal.same} of {equal.outputs}",
    )  # fmt: skip


def _measured(run: Results, baseline: str, *engines: str) -> list[Figures]:
    """Figures of the engines as compared with the baseline, none of them disturbed."""
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
