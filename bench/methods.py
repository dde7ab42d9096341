"""Every method on the default model: speed over plain decoding, by task group.

    python bench/methods.py [--out bench/results/methods.json] [--max-tokens 96] [--methods a b+c]

All methods answer a prompt one after the other, in an order that turns from prompt to prompt; each
has a tenant of its own, so that none learns from another's answers. Speeds are decode tokens per
second, token-weighted; intervals are paired bootstraps over prompts. Outputs are compared with
plain decoding token by token.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paradecode import LLM, SamplingParams
from paradecode.bench.machine import commit, describe
from paradecode.bench.statistics import interval, ratio_of_ratios

PLAIN = "greedy"
METHODS = (
    "prompt-lookup", "copyspec", "suffix", "input-copy", "token-recycling", "aded", "stand",
    "retrieval", "rasd", "jacobi(explore=always)", "lookahead(explore=always)", "layer-skip",
    "swift", "del", "prompt-lookup+token-recycling", "suffix+token-recycling",
    "prompt-lookup(budget=fixed)", "token-recycling(budget=fixed)",
)  # fmt: skip


def measure(llm: LLM, methods: list[str], max_tokens: int) -> list[dict[str, Any]]:
    """One record for each method and prompt."""
    lines = files("paradecode.bench").joinpath("prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line) for line in lines]
    records = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("prompts", total=len(prompts))
        for number, prompt in enumerate(prompts):
            ids = llm.chat_tokens([{"role": "user", "content": prompt["turns"][0]}])
            params = SamplingParams(max_tokens=min(max_tokens, prompt["max_tokens"]))
            turned = methods[number % len(methods) :] + methods[: number % len(methods)]
            for method in turned:
                output = llm.generate([ids], params, decoder=method, salt=method)[0]
                if output.error is not None:
                    raise output.error
                stats = output.stats
                records.append(
                    {
                        "method": method, "prompt": prompt["id"], "group": prompt["group"],
                        "tokens": stats.generated - stats.first_tokens,
                        "seconds": stats.decode_seconds, "forwards": stats.forwards,
                        "drafts": stats.drafts, "drafted": stats.drafted,
                        "accepted": stats.accepted, "generated": stats.generated,
                        "decoder_seconds": stats.decoder_seconds,
                        "token_ids": output.token_ids,
                    }
                )  # fmt: skip
            progress.advance(task)
    return records


def summarise(records: list[dict[str, Any]], methods: list[str]) -> list[dict[str, Any]]:
    """Totals, ratios with intervals, and equality with plain decoding."""
    plain = {r["prompt"]: r for r in records if r["method"] == PLAIN}
    groups = sorted({r["group"] for r in records})
    rows = []
    for method in methods:
        mine = [r for r in records if r["method"] == method]

        def speed_up(chosen: list[dict[str, Any]]) -> dict[str, float] | None:
            columns = [
                [r["tokens"] for r in chosen], [r["seconds"] for r in chosen],
                [plain[r["prompt"]]["tokens"] for r in chosen],
                [plain[r["prompt"]]["seconds"] for r in chosen],
            ]  # fmt: skip
            found = interval(columns, ratio_of_ratios)
            return asdict(found) if found else None

        total = {key: sum(r[key] for r in mine) for key in (
            "tokens", "seconds", "forwards", "drafts", "drafted", "accepted", "generated",
            "decoder_seconds",
        )}  # fmt: skip
        rows.append(
            {
                "method": method,
                "tokens_per_second": total["tokens"] / total["seconds"],
                "speed_up": speed_up(mine),
                "groups": {g: speed_up([r for r in mine if r["group"] == g]) for g in groups},
                "mean_acceptance_length": (
                    1 + total["accepted"] / total["drafts"] if total["drafts"] else 1.0
                ),
                "forwards_per_token": total["forwards"] / total["generated"],
                "decoder_share": total["decoder_seconds"] / total["seconds"],
                "equal_to_plain": sum(
                    r["token_ids"] == plain[r["prompt"]]["token_ids"] for r in mine
                ),
                "prompts": len(mine),
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table("method", "tokens/s", "over plain", "95 %", "worst group", "acceptance length",
                  "forwards/token", "method's share", "equal")  # fmt: skip
    for row in rows:
        overall = row["speed_up"]
        worst = min(row["groups"].items(), key=lambda item: item[1]["value"])
        table.add_row(
            row["method"], f"{row['tokens_per_second']:.0f}", f"{overall['value']:.2f}",
            f"{overall['low']:.2f}-{overall['high']:.2f}", f"{worst[0]} {worst[1]['value']:.2f}",
            f"{row['mean_acceptance_length']:.2f}", f"{row['forwards_per_token']:.2f}",
            f"{100 * row['decoder_share']:.0f} %", f"{row['equal_to_plain']}/{row['prompts']}",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    options = parser.parse_args()
    methods = [PLAIN, *options.methods]
    with LLM(backend="native") as llm:
        records = measure(llm, methods, options.max_tokens)
        model, backend = llm.model, llm.backend.name
    rows = summarise(records, methods)
    Console(width=160).print(show(rows))
    if options.out:
        head = {
            "date": date.today().isoformat(), "machine": asdict(describe()),
            "commit": commit(Path(__file__).parents[1]), "model": model, "backend": backend,
            "max_tokens": options.max_tokens, "methods": rows,
        }  # fmt: skip
        options.out.write_text(json.dumps(head, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
