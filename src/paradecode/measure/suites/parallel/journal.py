"""The raw file of a run: one JSON line a batch, so that an interrupted run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure.suites.parallel.results import Run, run_from_json


class Journal:
    """Append-only record of a run. Methods, tasks and instances may be added from call to call.

    Args:
        path: the file; made if it is not there.
        settings: what must be the same for answers and times to be comparable.

    Raises:
        InvalidInput: the file belongs to a run with other settings, or is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.runs: dict[tuple[str, tuple[str, ...]], Run] = {}
        own = json.loads(json.dumps(settings))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": own})
            return
        try:
            entries = self._entries()
            found = entries[0]["settings"]
            runs = [run_from_json(entry) for entry in entries[1:]]
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise InvalidInput("journal", str(path), "it is damaged; remove it") from None
        if found != own:
            fix = f"it was made with {_differences(found, own)}; remove it or name another --output"
            raise InvalidInput("journal", str(path), fix)
        self.runs = {(run.method, run.items): run for run in runs}

    def keep(self, run: Run) -> None:
        self.runs[run.method, run.items] = run
        self._append(asdict(run))

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _entries(self) -> list[dict[str, Any]]:
        text = self.path.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # A run that was killed while writing leaves half a line; it is cut off.
            self.path.write_text(whole, "utf-8")
        return [json.loads(line) for line in whole.splitlines()]


def _differences(found: Any, own: Mapping[str, Any]) -> str:
    if not isinstance(found, dict):
        return "other settings"
    names = [name for name in own if found.get(name) != own[name]]
    return ", ".join(f"{name} {found.get(name)!r}" for name in names) or "other settings"
