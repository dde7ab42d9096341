"""The table of servers in a page, from what ``tools.serving.peers`` has measured.

python -m tools.serving.page bench/results/serve.json docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.pages.marked import put

NAMES = {
    "llama-cpp": "llama.cpp",
    "transformers": "transformers",
    "paradecode-plain": "ours, `none`",
    "paradecode": "ours, default",
}


def table(document: Mapping[str, Any]) -> str:
    """Markdown: throughput, its ratio to the first endpoint, latencies, for each load."""
    settings, machine = document["settings"], document["machine"]
    lines = [
        f"{document['created'][:10]}, {machine['cpu']}, {settings['threads']} threads; "
        f"{settings['requests']} requests of at most {settings['max_tokens']} tokens, "
        f"{settings['rounds']} rounds:",
        "",
        "| clients | server | tokens/s | x (95 %) | first token, ms | a token, ms | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in document["figures"]:
        speedup = found["speedup"]
        x = "1" if speedup is None else "{value:.2f} ({low:.2f} to {high:.2f})".format(**speedup)
        lines.append(
            f"| {found['load'].removeprefix('c=')} | {NAMES[found['endpoint']]} "
            f"| {found['throughput']['value']:.0f} | {x} "
            f"| {1e3 * found['first']['p50']['value']:.0f} "
            f"| {1e3 * found['per_token']['p50']['value']:.1f} "
            f"| {sum(found['errors'].values())} of {found['requests']} |"
        )
    left_out = [f"{name} was left out: {why}." for name, why in settings["left_out"].items()]
    return "\n".join([*lines, *(["", *left_out] if left_out else [])])


def main(result: str, page: str) -> None:
    document = json.loads(Path(result).read_text("utf-8"))
    put(Path(page), "servers", table(document))


if __name__ == "__main__":
    main(*sys.argv[1:])
