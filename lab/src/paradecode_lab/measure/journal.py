"""Writes each event of a run as a line of JSON, so that an interrupted run can resume."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.machine import Stamp, place_of, stamp
from paradecode_lab.measure.result_files import record_to_json
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record
from paradecode_lab.measure.turns import DoneKey


class Journal:
    """An append-only file of a run's records. Engines and items may be added from call to call.

    All records come from one commit, one set of versions and one machine. Measurements of other
    code or from another machine are refused.

    Attributes:
        stamp: time, commit and machine of the run's beginning; the commit ends with ``+`` if a file
            was changed at any time.

    Args:
        path: the file, which is created if it is missing. None writes nothing.
        settings: further settings that two measurements must share to be comparable.

    Raises:
        InvalidInput: the file belongs to a run of other code, on another machine or with other
            settings, or is damaged.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        self.engines: dict[str, EngineInfo] = {}
        self.items: dict[str, ItemInfo] = {}
        self.stamp: Stamp = stamp()
        own = json.loads(json.dumps({**place_of(self.stamp), **settings}))
        if path is not None and path.exists():
            self._read(path, own)
        else:
            begun = {name: self.stamp[name] for name in ("created", "commit")}
            self._append({"settings": own, "begun": begun})

    @property
    def done(self) -> set[DoneKey]:
        """Keys of the measurements that are already done without an error."""
        return {(r.engine, r.batch, r.round, r.item) for r in self.records if not r.error}

    def keep(self, record: Record) -> None:
        self.records.append(record)
        self._append({"record": record_to_json(record)})

    def describe(self, engine: EngineInfo) -> None:
        """Write down the facts about an engine, which replace the earlier facts about it."""
        self.engines[engine.name] = engine
        self._append({"engine": asdict(engine)})

    def expect(self, engines: Iterable[EngineInfo], items: Iterable[ItemInfo]) -> None:
        """Write down the engines and items that are going to be measured.

        An engine or an item may differ from an earlier one with the same name, such as a head that
        was trained again, or an item with fewer tokens. Earlier records of such an engine or item
        then do not count.
        """
        changed = {
            "engines": [asdict(one) for one in engines if self.engines.get(one.name) != one],
            "items": [asdict(one) for one in items if self.items.get(one.id) != one],
        }
        if any(changed.values()):
            self._append({"expected": changed})
            self._take({"expected": changed})

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = path.read_text("utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # A run that was killed while it wrote leaves half a line.
            path.write_text(whole, "utf-8")
        try:
            # Not ``splitlines``: a text in a record may have line ends of Unicode in it.
            first, *entries = map(json.loads, whole.split("\n")[:-1])
            found, begun = dict(first["settings"]), dict(first.get("begun", {}))
            for entry in entries:
                self._take(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fix = "the file is damaged; remove it"
            raise InvalidInput("run", str(path), fix) from None
        if found != settings:
            names = sorted(settings.keys() | found.keys())
            other = [f"{n} {found.get(n)!r}" for n in names if found.get(n) != settings.get(n)]
            raise InvalidInput(
                "run", str(path),
                f"it was made with other prompts or settings, by other code or on another machine "
                f"({', '.join(other)}); remove it or name another output",
            )  # fmt: skip
        self.stamp["created"] = str(begun.get("created", ""))
        self.stamp["commit"] = max(str(begun.get("commit", "")), self.stamp["commit"], key=len)

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "record" in entry:
            self.records.append(build(Record, entry["record"], "record"))
        elif "expected" in entry:
            engines, items = (entry["expected"][kind] for kind in ("engines", "items"))
            self._expect(
                {one.name: one for one in (build(EngineInfo, each, "engine") for each in engines)},
                {one.id: one for one in (build(ItemInfo, each, "item") for each in items)},
            )
        else:
            engine = build(EngineInfo, entry["engine"], "engine")
            self.engines[engine.name] = engine

    def _expect(self, engines: dict[str, EngineInfo], items: dict[str, ItemInfo]) -> None:
        lost = engines.keys() & self.engines.keys(), items.keys() & self.items.keys()
        self.records = [
            r for r in self.records if r.engine not in lost[0] and r.item not in lost[1]
        ]
        self.engines |= engines
        self.items |= items
