"""The README's headline from committed results.

python -m tools.pages.headline bench/results/peers.json bench/results/peers_xeon.json \\
    bench/results/peers_own_lengths.json README.md
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.measure.figures import Figures, figures
from paradecode.measure.result_files import read_results
from paradecode.measure.results import Results
from paradecode.measure.tables import value
from tools.pages.marked import put

PLAIN, FAST, PEER = (
    "paradecode-native/q4_1", "paradecode-native/q4_1+prompt-lookup", "llama-cpp/q4_1",
)  # fmt: skip
WIDTH = 110


def headline(results: Results, elsewhere: Results, own_lengths: Results) -> str:
    """Speed and equality of the main run and on another machine, and at the prompts' own lengths.

    Raises:
        InvalidInput: an engine that it names was not measured, or outputs are not equal.
    """
    equal = _equal(results)
    if _equal(elsewhere) != equal:
        raise InvalidInput("results", FAST, "give two runs over the same inputs")
    longest = max(item.max_tokens for item in own_lengths.items)
    over = _engine(own_lengths, FAST).total.speedup
    text = (
        f"`{results.model}`, tokens a second plain and with `prompt-lookup`: {_speeds(results)}; "
        f"{_speeds(elsewhere)}. On both machines all {equal} outputs of `prompt-lookup` equal the "
        "plain ones ([how it was measured](docs/benchmarks.md)). At the prompts' own lengths, up "
        f"to {longest} tokens, `prompt-lookup` is {value(over)} times "
        "llama.cpp on the first."
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _speeds(results: Results) -> str:
    plain, fast = _engine(results, PLAIN).total, _engine(results, FAST).total
    machine = results.machine
    return (
        f"{value(plain.decode)} and {value(fast.decode)} on {machine.cores} cores of "
        f"{machine.cpu.partition(' (family')[0]}, which is {value(plain.speedup)} and "
        f"{value(fast.speedup)} times llama.cpp on the same file"
    )


def _equal(results: Results) -> int:
    """How many outputs were compared, all of them equal."""
    equal = _engine(results, FAST).equality
    assert equal is not None
    if equal.same < equal.outputs:
        fix = f"only {equal.same} of {equal.outputs} outputs are plain decoding's: no headline"
        raise InvalidInput("results", FAST, fix)
    return equal.outputs


def _engine(results: Results, name: str) -> Figures:
    for each in figures(results, PEER):
        if each.name == name and each.total.speedup:
            return each
    raise InvalidInput("results", name, f"measure it beside {PEER}")


def main() -> None:
    *files, target = map(Path, sys.argv[1:])
    results, elsewhere, own_lengths = map(read_results, files)
    text = headline(results, elsewhere, own_lengths)
    put(target, "headline", text)


if __name__ == "__main__":
    main()
