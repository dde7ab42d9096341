"""The README's headline from committed results.

python -m paradecode.report.headline bench/results/peers.json \\
    bench/results/peers_own_lengths.json README.md
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from paradecode.bench.figures import Figures, figures
from paradecode.bench.markdown import number
from paradecode.bench.results import Results, read_results
from paradecode.bench.statistics import Interval
from paradecode.core.errors import InvalidInput
from paradecode.report.marked import insert

PLAIN, FAST, PEER = (
    "paradecode-native/q4_1", "paradecode-native/q4_1+prompt-lookup", "llama-cpp/q4_1",
)  # fmt: skip
WIDTH = 110


def headline(results: Results, own_lengths: Results) -> str:
    """Two sentences: speed and equality of the main run, and speed at the prompts' own lengths.

    Raises:
        InvalidInput: an engine that they name was not measured.
    """
    plain, fast = _engine(results, PLAIN), _engine(results, FAST)
    equal = fast.equality
    assert equal is not None
    if equal.same < equal.outputs:
        fix = f"only {equal.same} of {equal.outputs} outputs are plain decoding's: no headline"
        raise InvalidInput("results", FAST, fix)
    longest = max(item.max_tokens for item in own_lengths.items)
    text = (
        f"`{results.model}` on {results.machine.cores} cores: {_speed(plain)} tokens/s plain, "
        f"{_speed(fast)} with `prompt-lookup`, which is {_over(plain)} and {_over(fast)} times "
        f"llama.cpp on the same file; all {equal.outputs} outputs of `prompt-lookup` equal the "
        "plain ones ([how it was measured](docs/benchmarks.md)). At the prompts' own lengths, up "
        f"to {longest} tokens, `prompt-lookup` is {_over(_engine(own_lengths, FAST))} times "
        "llama.cpp."
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _engine(results: Results, name: str) -> Figures:
    for each in figures(results, PEER):
        if each.name == name and each.summary.total.speedup:
            return each
    raise InvalidInput("results", name, f"measure it beside {PEER}")


def _speed(each: Figures) -> str:
    return _value(each.summary.total.decode)


def _over(each: Figures) -> str:
    return _value(each.summary.total.speedup)


def _value(found: Interval | None) -> str:
    assert found is not None
    return number(found.value)


def main() -> None:
    results, own_lengths, target = map(Path, sys.argv[1:])
    text = headline(read_results(results), read_results(own_lengths))
    target.write_text(insert(target.read_text("utf-8"), "headline", text), "utf-8")


if __name__ == "__main__":
    main()
