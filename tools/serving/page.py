"""Writes the table of servers into a page, from the measurements of ``tools.serving.peers``.

python -m tools.serving.page bench/results/serve_peers_135m.json docs/benchmarks.md [MARK]
"""

from __future__ import annotations

import sys
from pathlib import Path

from paradecode_lab.measure.result_files import read_results
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.suites.load.summary import LoadSummary, summarise
from paradecode_lab.measure.tables import Column, ends, markdown, value
from tools.pages.marked import put

NAMES = {
    "ik-llama-cpp": "ik_llama.cpp",
    "llama-cpp": "llama.cpp",
    "transformers": "transformers",
    "paradecode-plain": "ours, `none`",
    "paradecode": "ours, default",
}
COLUMNS: tuple[Column[LoadSummary], ...] = (
    Column("clients", lambda s: s.load.removeprefix("c=")),
    Column("server", lambda s: NAMES[s.endpoint]),
    Column("tokens/s", lambda s: value(s.throughput)),
    Column("x (95 %)", lambda s: ends(s.speedup) or "1"),
    Column("first token, ms", lambda s: value(s.first["p50"], 1e3)),
    Column("a token, ms", lambda s: value(s.per_token["p50"], 1e3)),
)


def table(results: Results) -> str:
    """Return Markdown: throughput, its ratio to the first endpoint's, and latencies by load."""
    settings = results.settings
    said = (
        f"{results.created[:10]}, {results.machine.cpu}, {settings['threads']} threads; "
        f"{settings['requests']} requests, or one a client, of at most "
        f"{settings['max_tokens']} tokens, {settings['rounds']} rounds:"
    )
    summaries = summarise(results)
    failed = sum(sum(each.errors.values()) for each in summaries)
    left_out = [f"{name} was left out: {why}." for name, why in settings["left_out"].items()]
    return "\n\n".join(
        [said, markdown(COLUMNS, summaries), f"{failed} requests failed.", *left_out]
    )


def main(result: str, page: str, mark: str = "servers") -> None:
    put(Path(page), mark, table(read_results(Path(result))))


if __name__ == "__main__":
    main(*sys.argv[1:])
