"""The README's headline from committed results; further models behind the first three files.

python -m tools.pages.headline bench/results/peers.json bench/results/peers_xeon.json \\
    bench/results/peers_own_lengths.json bench/results/peers_1.5b.json README.md
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.figures import Figures, figures
from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.tables import value
from tools.pages.marked import put

OWN = "paradecode-native/"
PEERS = {"llama-cpp/": "llama.cpp", "ik-llama-cpp/": "ik_llama.cpp"}
FIRST = "llama-cpp/"
"""The peer with which every run is compared; the other one appears only where it was measured."""

WIDTH = 110


def headline(
    results: Results, elsewhere: Results, own_lengths: Results, others: Sequence[Results] = ()
) -> str:
    """Speed and equality of the main run and on another machine, and at the prompts' own lengths.

    Args:
        others: runs of other models on the first machine.

    Raises:
        InvalidInput: an engine that it names was not measured, or outputs are not equal.
    """
    (here, equal), (there, also) = _said(results), _said(elsewhere)
    if equal != also:
        raise InvalidInput("results", _fast(elsewhere), "give two runs over the same inputs")
    longest = max(item.max_tokens for item in own_lengths.items)
    _, over = _ours(own_lengths, FIRST)
    text = (
        f"`{results.model}`, tokens a second plain and with `prompt-lookup`: {here}; {there}. "
        f"On both machines all {equal} outputs of `prompt-lookup` equal the "
        "plain ones ([how it was measured](docs/benchmarks.md)). At the prompts' own lengths, up "
        f"to {longest} tokens, `prompt-lookup` is {value(over.total.speedup)} times "
        "llama.cpp on the first."
    )
    for other in others:
        is_again = other.model == results.model
        # llama.cpp is another build of it there: two ratios for one model would only confuse.
        speeds, outputs = _said(other, [peer for peer in PEERS if peer != FIRST or not is_again])
        named = f"`{other.model}` again, in another run" if is_again else f"`{other.model}`"
        text += f" {named}: {speeds}; all {outputs} outputs equal."
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _said(results: Results, peers: Sequence[str] = (*PEERS,)) -> tuple[str, int]:
    """Text with the plain and fast speeds beside each peer; and the number of equal outputs,
    which is all of them."""
    plain, fast = _ours(results, FIRST)
    equal = fast.equality
    assert equal is not None
    if equal.same < equal.outputs:
        fix = f"only {equal.same} of {equal.outputs} outputs are plain decoding's: no headline"
        raise InvalidInput("results", fast.name, fix)
    over = []
    for peer in peers:
        if peer == FIRST or _peer(results, peer):
            ratios = [value(each.total.speedup) for each in _ours(results, peer)]
            over.append(f"{' and '.join(ratios)} times {PEERS[peer]}")
    machine = results.machine
    said = (
        f"{value(plain.total.decode)} and {value(fast.total.decode)} on {machine.cores} cores of "
        f"{machine.cpu.partition(' (family')[0]}, which is {', '.join(over)} on the same file"
    )
    return said, equal.outputs


def _fast(results: Results) -> str:
    """The figures of our engine with the default method."""
    names = [engine.name for engine in results.engines]
    found = [n for n in names if n.startswith(OWN) and n.endswith("+prompt-lookup")]
    if not found:
        raise InvalidInput("results", results.model, f"measure {OWN}*+prompt-lookup")
    return found[0]


def _peer(results: Results, peer: str) -> str | None:
    """The name of a peer's plain engine on the file that our engine ran."""
    name = peer + _fast(results).removeprefix(OWN).partition("+")[0]
    return name if any(e.name == name and e.status == "ok" for e in results.engines) else None


def _ours(results: Results, peer: str) -> list[Figures]:
    """Our engine, plain and with the default method, as compared with a peer on the same file."""
    fast, baseline = _fast(results), _peer(results, peer)
    plain = fast.partition("+")[0]
    found = {each.name: each for each in figures(results, baseline)} if baseline else {}
    for name in (plain, fast):
        if name not in found or not found[name].total.speedup:
            raise InvalidInput("results", name, f"measure it beside {peer}* on the same file")
    return [found[plain], found[fast]]


def main() -> None:
    *files, target = map(Path, sys.argv[1:])
    first, others = files[:3], [file for file in files[3:] if file.exists()]
    here, elsewhere, own_lengths = map(read_results, first)
    text = headline(here, elsewhere, own_lengths, [read_results(file) for file in others])
    put(target, "headline", text)


if __name__ == "__main__":
    main()
