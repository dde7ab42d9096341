"""``docs/diffusion_matrix.md``: which parts of canvas methods run together, from a conformance run.

python -m paradecode.testing.canvas_matrix bench/results/diffusion_matrix.json
python -m tools.pages.canvas_matrix_page bench/results/diffusion_matrix.json \\
    docs/diffusion_matrix.md
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.sources import line

HEAD = """# Which parts of a canvas method run together

Generated from a run of every policy with every block rule and every cache by
`python -m paradecode.testing.canvas_matrix` and `python -m tools.pages.canvas_matrix_page`;
do not edit. [Canvas decoding](diffusion.md) says what the parts are. Every setting that is not
named here has its default.
"""
FILE = "diffusion_matrix.json"

ATTENTION = {
    "full": "full attention (LLaDA)",
    "shift": "full attention, shifted (Dream)",
    "block": "blocks (SDAR, LLaDA2)",
    "block-shift": "blocks, shifted (Fast-dLLM v2)",
    "causal": "causal with a mask token, shifted",
}
"""Maps each kind of model to its name in words."""


def page(results: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: of :func:`paradecode.testing.canvas_matrix.run`.
    """
    policies, blocks, caches = (results[name] for name in ("policies", "blocks", "caches"))
    kinds = results["attention"]
    combinations = len(blocks) * len(kinds)
    left = {(policy, cache): combinations for policy in policies for cache in caches}
    for policy, _, cache, kind, _ in results["refused"]:
        left[policy, cache] -= len(kinds) if kind == "any" else 1
    every = len(policies) * len(caches) * combinations
    lines = [
        HEAD,
        f"{len(policies)} policies, {len(blocks)} block rules ({_names(blocks)}), {len(caches)} "
        f"caches and {len(kinds)} kinds of attention are {every} cases; {results['ran']} of them "
        "run, and a batch changes no text in any of them. A request for one of the others is "
        "refused with the reason.\n",
        f"<!-- source: {FILE} -->\n- {line(FILE)}\n",
        "## Refused\n",
        "| policy | blocks | cache | model | reason |\n|---|---|---|---|---|",
        *_reasons(results),
        "\n## By policy and cache\n",
        "How many of the block rules and kinds of attention run: "
        f"{len(blocks)} x {len(kinds)} = {combinations} is all of them.\n",
        "| policy | " + " | ".join(f"`{cache}`" for cache in caches) + " |",
        "|---" * (len(caches) + 1) + "|",
    ]
    for policy in policies:
        cells = [f"`{policy}`", *(str(left[policy, cache]) for cache in caches)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _reasons(results: Mapping[str, Any]) -> list[str]:
    """One line for each reason, with what it holds for."""
    groups: dict[str, list[Sequence[str]]] = defaultdict(list)
    for *parts, reason in results["refused"]:
        groups[reason].append(parts)
    lines = []
    for reason, cases in sorted(groups.items()):
        policies, blocks, caches, kinds = (set(column) for column in zip(*cases, strict=True))
        whole = len(policies) * len(blocks) * len(caches) * len(kinds) == len(cases)
        assert whole, f"the cases of one reason are no product of parts: {reason}"
        cells = [
            "any" if policies == {*results["policies"]} else _names(sorted(policies)),
            "any" if blocks == {*results["blocks"]} else _names(sorted(blocks)),
            "any" if caches == {*results["caches"]} else _names(sorted(caches)),
            "any" if kinds == {"any"} else "; ".join(ATTENTION[kind] for kind in sorted(kinds)),
            reason,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    target.write_text(page(json.loads(source.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
