"""Counts the sparse trees that PPD's rule builds for different costs t(K) of a forward of K rows.

    paradecode train head ppd out/ppd --own 460 --max-tokens 96 --length 256 --steps 42 \\
        --batch 8 --rate 0.01 --threads 1
    python -m tools.figures.prompt_rows out/ppd [RUN...] [--model FILE] [--per-group 1]
        [--max-tokens 48] [--out FILE.json]
    python -m tools.figures.prompt_rows FILE.json --into docs/training.md

A RUN is the folder of `paradecode train head` with `ppd` or `hidden-transfer`. The usual budget
decodes the same prompts with costs t(K) = 1 + slope * (K - 1), in which a row costs a share of a
whole forward, and with the costs that were measured on this machine. ``fixed`` gives every node all
prompt rows, whatever they cost. ``by t(K)`` is the speed over plain decoding that follows from the
counts of tokens and rows; times are not measured.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from rich.progress import track

from paradecode import LLM
from paradecode.core.decoder import Forward
from paradecode.engine.cost import CostCurve
from paradecode.methods.draft.row_drafter import GuessRows
from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
from paradecode_lab.measure.tables import Column
from tools.figures.heads import read_run, spec_of
from tools.script import err, options, stamped, tabulate

SLOPES = (0.0, 0.01, 0.05, 0.1, 0.3)
MOST = 128
"""The most rows of a forward in the made curves."""
COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("head", lambda row: f"`{row['head']}`"),
    Column("a further row costs", lambda row: row["cost"]),
    Column("draft tokens", lambda row: f"{row['nodes']:.2f}"),
    Column("prompt rows", lambda row: f"{row['prompts']:.2f}"),
    Column("tokens a forward", lambda row: f"{row['tokens_a_forward']:.2f}"),
    Column("by t(K)", lambda row: f"{row['by_cost']:.2f}x"),
    Column("equal", lambda row: f"{row['equal']} of {row['outputs']}"),
)


def sloped(slope: float) -> CostCurve:
    """Return the curve in which every further row costs ``slope`` of a forward of one row."""
    second = 0.005
    return CostCurve((1, MOST), (256,), ((second, second * (1 + slope * (MOST - 1))),))


@contextmanager
def counted() -> Iterator[list[tuple[int, int]]]:
    """Collect the draft tokens and the prompt rows of each verification of a drafter of rows."""
    seen, score = list[tuple[int, int]](), GuessRows.score

    def counting(self: GuessRows, forward: Forward) -> Any:
        seen.append((len(forward.tree), int(self.counts.sum())))
        return (yield from score(self, forward))

    with patch.object(GuessRows, "score", counting):
        yield seen


def measured(given: Namespace) -> dict[str, Any]:
    """Return the counts of all runs and costs."""
    rows = []
    with LLM(given.model, backend="native") as llm:
        prompts = first_of_each_group(load_prompts(), given.per_group)
        asked = [each.token_ids for each in first_turns(prompts, llm.chat_tokens)]
        said = {"temperature": 0.0, "max_tokens": given.max_tokens}
        plain = [llm.complete([one], decoder="greedy", **said)[0].token_ids for one in asked]
        own = llm.engine.load.curve
        costs = {"measured": own} | {f"{slope:g}": sloped(slope) for slope in SLOPES}
        ways = [
            (run, cost, curve, budget)
            for run in map(read_run, given.runs)
            for cost, curve, budget in (
                *((cost, curve, "auto") for cost, curve in costs.items()), ("fixed", own, "fixed"),
            )
        ]  # fmt: skip
        for run, cost, curve, budget in track(ways, "ways", console=err):
            llm.engine.load.curve = curve
            with counted() as seen:
                made = [llm.complete([one], decoder=spec_of(run, budget), **said)[0]
                        for one in asked]  # fmt: skip
            tokens = sum(one.stats.generated for one in made)
            forwards = sum(one.stats.forwards for one in made)
            spent = float(forwards - len(seen))  # The others have one row.
            if curve is not None:
                one_row = curve.at(1, 256)
                spent += sum(curve.at(1 + sum(each), 256) / one_row for each in seen)
            rows.append({
                "head": run["head"], "steps": run["steps"], "cost": cost,
                "nodes": sum(nodes for nodes, _ in seen) / forwards,
                "prompts": sum(prompts for _, prompts in seen) / forwards,
                "tokens_a_forward": tokens / forwards, "by_cost": tokens / spent,
                "outputs": len(made),
                "equal": sum(a.token_ids == b for a, b in zip(made, plain, strict=True)),
            })  # fmt: skip
        model = llm.model
    return stamped(model=model, max_tokens=given.max_tokens, ways=rows)


def main() -> None:
    tabulate(options(__doc__, per_group=1, max_tokens=48), COLUMNS, measured)


if __name__ == "__main__":
    main()
