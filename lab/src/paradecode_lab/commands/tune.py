"""`paradecode tune`: find the method that pays for this model, machine and workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from paradecode.cli.console import err, out
from paradecode.cli.options import Loading, PerGroup, argument, grouped, option
from paradecode.cli.outputs import writable
from paradecode.cli.progress import measure_forwards
from paradecode.core.errors import InvalidInput


@grouped
def tune(
    loading: Loading,
    output: Path = argument(Path("profile.json"), "Write the profile to this file."),
    workload: Path | None = option(
        None, "JSONL of {id, group, turns, max_tokens}; has a default.", sets="prompts"
    ),
    per_group: PerGroup = None,
    max_tokens: int = option(192, "Generate at most this many tokens of an answer.", min=1),
    seed: int = option(0, "Seed that chooses the held-out prompts.", min=0),
    table: list[Path] | None = option(None, "Also try this table of `train ngram-table`; repeat."),
    head: list[Path] | None = option(None, "Also try this trained or published head; repeat."),
    costs: Path | None = option(
        None, "Repeat the search of this profile exactly, with its costs.", sets="profile"
    ),
) -> None:
    """Search methods, fusions and settings by replay; confirm the best on held-out prompts."""
    from paradecode.engine.engine import Limits
    from paradecode.methods.choice import Profile
    from paradecode.timing.doubts import SUSPICIOUS
    from paradecode.timing.warm_up import warm_up
    from paradecode_lab.measure.prompts import first_of_each_group, first_turns, load_prompts
    from paradecode_lab.measure.replay.timing import WIDE
    from paradecode_lab.measure.tune.search import Costs
    from paradecode_lab.measure.tune.tuning import FEWEST
    from paradecode_lab.measure.tune.tuning import tune as tuned

    writable("OUTPUT", output)
    prompts = first_of_each_group(load_prompts(workload), per_group)
    if len(prompts) < FEWEST:
        raise InvalidInput("--workload", len(prompts), f"give at least {FEWEST} prompts")
    _there("--table", table or ())
    _there("--head", head or ())
    known = Costs.of(Profile.load(costs).record.get("costs")) if costs else None
    with (
        loading.open_autoregressive("tune", limits=Limits(prefix_cache=False)) as llm,
        Progress(console=err) as progress,
    ):
        warm_up(llm, [WIDE])
        measure_forwards(llm, progress)

        def stage(title: str, total: int | None) -> Callable[[], None]:
            task = progress.add_task(title, total=total)
            return lambda: progress.advance(task)

        items = first_turns(prompts, llm.chat_tokens, max_tokens)
        tables = [str(path.absolute()) for path in table or ()]
        heads = [str(path.absolute()) for path in head or ()]
        profile = tuned(llm, items, seed=seed, costs=known, tables=tables, heads=heads, stage=stage)
    output.write_text(json.dumps(profile, indent=1) + "\n", "utf-8")
    out.print(_measured(profile))
    if any(row["suspicious"] for row in profile["measured"]):
        out.print(f"[yellow]{SUSPICIOUS}[/]", highlight=False)
    if profile["too_short"]:
        out.print(f"[yellow]{escape(profile['too_short'])}[/]", highlight=False)
    out.print(_why(profile))
    out.print(f"{profile['decoder']} in {output}", soft_wrap=True, highlight=False)


def _there(field: str, paths: Sequence[Path]) -> None:
    """Raise InvalidInput for a path that does not exist, before the search takes its time."""
    for path in paths:
        if not path.exists():
            raise InvalidInput(field, str(path), "name what is there")


def _measured(profile: dict[str, Any]) -> Table:
    from paradecode.timing.doubts import marked

    table = Table("method", "over plain", "tokens/forward", "worst group", "predicted", "equal",
                  title="On held-out prompts")  # fmt: skip
    for row in profile["measured"]:
        table.add_row(
            row["decoder"], marked(_over(row["speed_up"]), row["suspicious"]),
            f"{row['tokens_a_forward']:.2f}", _worst(row["groups"]),
            f"{row['predicted_speed_up']:.2f}", f"{row['equal_to_plain']}/{row['prompts']}",
        )  # fmt: skip
    return table


def _worst(groups: dict[str, Any]) -> str:
    """Return the slowest group among those with enough prompts for a figure, or ""."""
    from paradecode_lab.measure.too_short import ENOUGH_OF_A_GROUP

    large = [(each["value"], name) for name, each in groups.items()
             if each["prompts"] >= ENOUGH_OF_A_GROUP]  # fmt: skip
    if not large:
        return ""
    _, name = min(large)
    return f"{name} {_over(groups[name])}"


def _over(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ({found['low']:.2f}-{found['high']:.2f})"


def _why(profile: dict[str, Any]) -> Table:
    table = Table("part", "speed-up without it", "what it is worth", title="Why, by replay")
    for row in profile["why"]:
        table.add_row(row["part"], f"{row['speed_up_without']:.2f}", f"x {row['factor']:.3f}")
    return table
