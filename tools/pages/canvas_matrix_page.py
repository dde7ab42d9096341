"""Writes into a page which parts of canvas methods run together, from a conformance run.

python -m paradecode.testing.canvas_matrix bench/results/diffusion_matrix.json
python -m tools.pages.canvas_matrix_page bench/results/diffusion_matrix.json docs/diffusion.md
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.marked import put

ATTENTION = {
    "full": "full attention (LLaDA)",
    "shift": "full attention, shifted (Dream)",
    "block": "blocks (SDAR, LLaDA2)",
    "block-shift": "blocks, shifted (Fast-dLLM v2)",
    "causal": "causal with a mask token, shifted",
}
"""Kind of attention -> its name in words."""


def text(results: Mapping[str, Any]) -> str:
    """Return Markdown: how many combinations run, and why the others are refused.

    Args:
        results: the result of :func:`paradecode.testing.canvas_matrix.run`.
    """
    policies, blocks, caches = (results[name] for name in ("policies", "blocks", "caches"))
    kinds = results["attention"]
    every = len(policies) * len(blocks) * len(caches) * len(kinds)
    lines = [
        f"{len(policies)} policies, {len(blocks)} block rules ({_names(blocks)}), {len(caches)} "
        f"caches ({_names(caches)}) and {len(kinds)} kinds of attention are {every} cases. "
        f"{results['ran']} of them run, and a batch changes no text in any of them.\n",
        "| refused: policy | blocks | cache | model | reason |\n|---|---|---|---|---|",
        *_reasons(results),
    ]
    return "\n".join(lines)


def _reasons(results: Mapping[str, Any]) -> list[str]:
    """Return one table row for each reason, with the parts for which it holds."""
    groups: dict[str, list[Sequence[str]]] = defaultdict(list)
    for *parts, reason in results["refused"]:
        groups[reason].append(parts)
    lines = []
    for reason, cases in sorted(groups.items()):
        policies, blocks, caches, kinds = (set(column) for column in zip(*cases, strict=True))
        whole = len(policies) * len(blocks) * len(caches) * len(kinds) == len(cases)
        assert whole, f"the cases of one reason are no product of parts: {reason}"
        cells = [
            *(
                _set(found, results[name])
                for found, name in ((policies, "policies"), (blocks, "blocks"), (caches, "caches"))
            ),
            "any" if kinds == {"any"} else "; ".join(ATTENTION[kind] for kind in sorted(kinds)),
            reason,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _set(found: set[str], every: Sequence[str]) -> str:
    """Return the names in a set, or "any but" the missing names if these are fewer."""
    left = sorted({*every} - found)
    if len(left) >= len(found):
        return _names(sorted(found))
    return f"any but {_names(left)}" if left else "any"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    put(target, "matrix", text(json.loads(source.read_text("utf-8"))))


if __name__ == "__main__":
    main()
