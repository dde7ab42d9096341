"""``docs/methods.md``: every method from the registry, its measured line from a results file.

python -m paradecode.report.methods_page bench/results/methods.json docs/methods.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paradecode.decoders.registry import Method, methods

HEAD = """# Methods

Generated from the registry and a results file by `python -m paradecode.report.methods_page`; do not
edit. `exact` methods emit the tokens of plain decoding, greedy and with a seed at any temperature.
Every draft-and-verify method also takes `num_speculative_tokens`, `budget`, `threshold`, and
`verifier` ([verifiers](verifiers.md)); methods that cost no model of their own can be fused:
`prompt-lookup+token-recycling`. Every canvas method also takes `steps`, `block_length`, `blocks` and
`cache` ([diffusion](diffusion.md)); `exact` ones emit the tokens of `static`.
"""

SHARED = {
    "autoregressive": (
        "num_speculative_tokens", "budget", "threshold", "acceptance_head", "tree_selector",
        "verifier",
    ),
    "diffusion": ("steps", "block_length", "blocks", "cache"),
}  # fmt: skip


def page(results: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: what ``bench/methods.py`` wrote.
    """
    known = sorted(methods().values(), key=lambda method: (method.family, method.name))
    built_in = [m for m in known if m.build.__module__.startswith("paradecode.")]
    return "\n".join(
        [HEAD, *(_section(method, results) for method in built_in), _measured(results)]
    )


def _section(method: Method, results: Mapping[str, Any]) -> str:
    link = f"https://arxiv.org/abs/{method.arxiv}" if method.arxiv else method.url
    paper = f"[{method.paper}]({link})" if link else method.paper
    needs = "" if method.training == "none" else f" Training: {method.training}."
    models = f" Needs a second model ({', '.join(method.models)})." if method.models else ""
    lines = [
        f"## `{method.name}`\n",
        f"{method.summary}\n",
        f"{paper}. Guarantee: {method.guarantee}.{needs}{models}",
    ]
    own = [entry for entry in method.parameters if entry.name not in SHARED[method.family]]
    if own:
        lines.append("\n| setting | default | meaning |\n|---|---|---|")
        lines += [f"| `{p.name}` | `{p.default}` | {p.help} |" for p in own]
    row = next((r for r in results["methods"] if r["method"] == method.name), None)
    if row is not None and method.name != "greedy":
        overall = row["speed_up"]
        lines.append(
            f"\nMeasured: {overall['value']:.2f}x plain decoding "
            f"({overall['low']:.2f} to {overall['high']:.2f}), mean acceptance length "
            f"{row['mean_acceptance_length']:.2f}, {row['equal_to_plain']} of {row['prompts']} "
            "outputs equal to plain."
        )
    return "\n".join(lines) + "\n"


def _measured(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    groups = list(results["methods"][0]["groups"])
    head = (
        f"## All methods, one run\n\n{results['model']} on the {results['backend']} backend, "
        f"{machine['cpu']}, {machine['cores']} cores, {results['date']}; "
        f"{results['methods'][0]['prompts']} prompts, at most {results['max_tokens']} tokens. "
        "Speed over plain decoding, token-weighted, with 95 % intervals, then by task group; "
        "`replay` is what `paradecode replay` predicts, `share` the method's own time.\n\n"
    )
    table = [
        "| method | tokens/s | over plain | replay | length | share | equal | "
        + " | ".join(groups)
        + " |",
        "|---" * (7 + len(groups)) + "|",
    ]
    for row in results["methods"]:
        overall = row["speed_up"]
        cells = [
            f"`{row['method']}`",
            f"{row['tokens_per_second']:.0f}",
            f"**{overall['value']:.2f}** ({overall['low']:.2f}–{overall['high']:.2f})",
            f"{row['predicted']['speed_up']:.2f}" if "predicted" in row else "",
            f"{row['mean_acceptance_length']:.2f}",
            f"{100 * row['decoder_share']:.0f} %",
            f"{row['equal_to_plain']}/{row['prompts']}",
            *(f"{row['groups'][group]['value']:.2f}" for group in groups),
        ]
        table.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(table) + "\n"


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    target.write_text(page(json.loads(source.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
