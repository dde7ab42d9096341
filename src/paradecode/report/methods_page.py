"""``docs/methods.md``: every method from the registry, its measured line from a results file.

python -m paradecode.report.methods_page bench/results/methods.json \\
    bench/results/methods_pair.json docs/methods.md
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
`prompt-lookup+token-recycling`. Every canvas method also takes `steps`, `block_length`, `blocks`
and `cache` ([diffusion](diffusion.md)); `exact` ones emit the tokens of `static`.
"""

SHARED = {
    "autoregressive": (
        "num_speculative_tokens", "budget", "threshold", "acceptance_head", "tree_selector",
        "verifier",
    ),
    "diffusion": ("steps", "block_length", "blocks", "cache"),
}  # fmt: skip


def page(results: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: what ``bench/methods.py`` wrote of the default model.
        pair: the same of a larger target with a draft model.
    """
    known = sorted(methods().values(), key=lambda method: (method.family, method.name))
    built_in = [m for m in known if m.build.__module__.startswith("paradecode.")]
    return "\n".join(
        [
            HEAD,
            *(_section(method, results) for method in built_in),
            _measured("All methods, one run", results),
            _measured("A larger target, and a draft model", pair),
        ]
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


def _measured(title: str, results: Mapping[str, Any]) -> str:
    machine, rows = results["machine"], results["methods"]
    groups = list(rows[0]["groups"])
    draft = f", draft model {results['draft_model']}" if results.get("draft_model") else ""
    head = (
        f"## {title}\n\n{results['model']}{draft} on the {results['backend']} backend, "
        f"{machine['cpu']}, {machine['cores']} cores, {results['date']}; "
        f"{rows[0]['prompts']} prompts, at most {results['max_tokens']} tokens. "
        "Speed over plain decoding, token-weighted, with 95 % intervals, then by task group; "
        "`replay` is what `paradecode replay` predicts, `share` the method's own time. A method "
        "pays where `tokens`, the output tokens of a target forward, is more than `step`, the "
        "time of a step over that of a plain one.\n\n"
    )
    table = [
        "| method | tokens/s | over plain | replay | tokens | step | length | share | equal | "
        + " | ".join(groups)
        + " |",
        "|---" * (9 + len(groups)) + "|",
    ]
    for row in rows:
        overall, tokens = row["speed_up"], 1 / row["forwards_per_token"]
        cells = [
            f"`{row['method']}`",
            f"{row['tokens_per_second']:.0f}"
            if rows[0]["tokens_per_second"] > 100
            else f"{row['tokens_per_second']:.1f}",
            f"**{overall['value']:.2f}** ({overall['low']:.2f}–{overall['high']:.2f})",
            f"{row['predicted']['speed_up']:.2f}" if "predicted" in row else "",
            f"{tokens:.2f}",
            f"{tokens / overall['value']:.2f}",
            f"{row['mean_acceptance_length']:.2f}",
            f"{100 * row['decoder_share']:.0f} %",
            f"{row['equal_to_plain']}/{row['prompts']}",
            *(f"{row['groups'][group]['value']:.2f}" for group in groups),
        ]
        table.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(table) + "\n"


def main() -> None:
    *sources, target = map(Path, sys.argv[1:])
    results, pair = (json.loads(source.read_text("utf-8")) for source in sources)
    target.write_text(page(results, pair), "utf-8")


if __name__ == "__main__":
    main()
