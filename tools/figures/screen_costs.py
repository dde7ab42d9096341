"""Committed figures whose clock ran while the screened head was built.

    python -m tools.figures.screen_costs

From 2a8501a to the commit before 53de513 the core built the screen of an 8-bit head within the 64th
greedy row, so the first to come by paid 0.3 to 0.6 s for it. A result of these commits is listed if
it compares methods with plain greedy decoding of the default model, which was not warm, and if the
screen is more than a hundredth of the time of that decoding. Results without plain decoding beside
the methods, or with medians of single forwards, are not concerned.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from tools.pages.sources import RESULTS
from tools.script import REPOSITORY, show

BUILT_LATE, BUILT_AT_LOAD = "2a8501a", "53de513"
SCREEN = (0.3, 0.6)
"""Seconds that a screen took."""
FORWARD = 0.0019
"""Seconds of a plain forward where the result does not say them: on the first machine."""
WARM = {
    "all_heads.json": "two requests of each way came first",
    "heads_at_rest.json": "two requests of each way came first",
}
"""Results of these commits that had 64 greedy rows before their clock ran."""


def is_ancestor(one: str, other: str) -> bool:
    """Whether a commit is another one, or in its history; False where git does not know both."""
    command = ["git", "merge-base", "--is-ancestor", one, other]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True).returncode == 0


def plain_seconds(made: Mapping[str, Any]) -> float:
    """Time of the plain decoding that ratios of the result refer to; 0 where it has none."""
    if "batches" in made:  # A round with one request at a time.
        (first,) = (each for each in made["batches"] if each["batch"] == 1)
        return float(made["outputs"] * made["max_tokens"] / first["tokens_per_second"]["plain"][0])
    for first in (made[name][0] for name in ("heads", "ways", "methods") if name in made):
        if "speed_up" in first:
            seconds = first.get("step_ms", 1e3 * FORWARD) / 1e3
            return float(first["prompts"] * made["max_tokens"] * seconds)
    return 0.0


def charged() -> dict[str, float]:
    """Name of each such result -> seconds of its plain decoding."""
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        made = json.loads(file.read_text("utf-8"))
        if not isinstance(made, dict) or made.get("model") != "smollm2-135m-instruct":
            continue
        commit = made.get("commit", "").rstrip("+")
        if is_ancestor(BUILT_LATE, commit) and not is_ancestor(BUILT_AT_LOAD, commit):
            seconds = plain_seconds(made)
            if seconds and SCREEN[1] > 0.01 * seconds and file.name not in WARM:
                found[file.name] = seconds
    return found


def main() -> None:
    least, most = SCREEN
    rows = [
        {"file": file, "plain": plain, "least": least / plain, "most": most / plain}
        for file, plain in charged().items()
    ]
    shares = "{least:.0%} to {most:.0%}"
    show(rows, {"result": "{file}", "plain, s": "{plain:.1f}", "screen's share": shares})


if __name__ == "__main__":
    main()
