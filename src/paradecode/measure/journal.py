"""The raw file of a run: one JSON line for each thing that happened, so that a run can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode.measure.result_files import record_to_json
from paradecode.measure.results import EngineInfo, Record
from paradecode.measure.turns import DoneKey


class Journal:
    """Append-only record of a run. Engines and items may be added from call to call.

    Args:
        path: the file; made if it is not there. None keeps nothing.
        settings: what must be the same for measurements to be comparable.

    Raises:
        InvalidInput: the file belongs to a run with other settings, or is damaged.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        self.engines: dict[str, EngineInfo] = {}
        own = json.loads(json.dumps(settings))
        if path is not None and path.exists():
            self._read(path, own)
        else:
            self._append({"settings": own})

    @property
    def done(self) -> set[DoneKey]:
        """What need not be measured again."""
        return {(r.engine, r.batch, r.round, r.item) for r in self.records if not r.error}

    def keep(self, record: Record) -> None:
        self.records.append(record)
        self._append({"record": record_to_json(record)})

    def describe(self, engine: EngineInfo) -> None:
        """What is known of an engine now; replaces what was known before."""
        self.engines[engine.name] = engine
        self._append({"engine": asdict(engine)})

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = path.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # A run that was killed while writing leaves half a line; it is cut off.
            path.write_text(whole, "utf-8")
        try:
            first, *entries = (json.loads(line) for line in whole.splitlines())
            found = dict(first["settings"])
            for entry in entries:
                if "record" in entry:
                    self.records.append(build(Record, entry["record"], "record"))
                else:
                    engine = build(EngineInfo, entry["engine"], "engine")
                    self.engines[engine.name] = engine
        except (ValueError, KeyError, TypeError, RecursionError):
            fix = "the file is damaged; remove it"
            raise InvalidInput("run", str(path), fix) from None
        if found != settings:
            names = sorted(settings.keys() | found.keys())
            other = [f"{n} {found.get(n)!r}" for n in names if found.get(n) != settings.get(n)]
            raise InvalidInput(
                "run", str(path),
                f"it was made with other prompts or settings ({', '.join(other)}); "
                "remove it or name another output",
            )  # fmt: skip
