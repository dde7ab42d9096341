"""The raw file of a run: one JSON line for each thing that happened, so that a run can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure.results import (
    EngineInfo,
    Record,
    record_from_json,
    record_to_json,
)


class Journal:
    """Append-only record of a run.

    Args:
        path: the file; made if it is not there.
        settings: what must be the same for measurements to be comparable.

    Raises:
        InvalidInput: the file belongs to a run with other settings, or is damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        self.engines: dict[str, EngineInfo] = {}
        own = json.loads(json.dumps(settings))
        if path.exists():
            self._read(own)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": own})

    @property
    def done(self) -> set[tuple[str, str, int]]:
        """What need not be measured again."""
        return {(r.engine, r.item, r.round) for r in self.records if not r.error}

    def keep(self, record: Record) -> None:
        self.records.append(record)
        self._append({"record": record_to_json(record)})

    def describe(self, engine: EngineInfo) -> None:
        """What is known of an engine now; replaces what was known before."""
        self.engines[engine.name] = engine
        self._append({"engine": asdict(engine)})

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _read(self, settings: Mapping[str, Any]) -> None:
        entries = self._entries()
        if not entries or entries[0].get("settings") != settings:
            raise InvalidInput(
                "run", str(self.path), "it was made with other prompts or settings; name another"
            )
        for entry in entries[1:]:
            if "record" in entry:
                self.records.append(record_from_json("run record", entry["record"]))
            else:
                self.engines[entry["engine"]["name"]] = EngineInfo(**entry["engine"])

    def _entries(self) -> list[dict[str, Any]]:
        lines = self.path.read_text("utf-8").splitlines()
        entries: list[dict[str, Any]] = []
        for number, line in enumerate(lines):
            try:
                entries.append(json.loads(line))
            except ValueError:
                if number + 1 < len(lines):
                    raise InvalidInput(
                        "run", str(self.path), "the file is damaged; remove it"
                    ) from None
                # A run that was killed while writing leaves half a line; it is cut off.
                whole = "".join(kept + "\n" for kept in lines[:-1])
                self.path.write_text(whole, "utf-8")
        return entries
