"""Makes sheets of the files of ``tools/figures/methods.py``, which have only totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradecode.core.checks import build
from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from paradecode.timing.doubts import SUSPICIOUS, is_suspicious, marked, verifies
from paradecode_lab.measure.sheet import PLAIN, Line, Sheet, Tile
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tables import number, spread
from paradecode_lab.measure.too_short import ENOUGH_OF_A_GROUP

REFERENCE = "greedy"
HEAD = ("output", "tokens/s", "× plain", "tokens/forward", "acceptance length", "method's share")


@dataclass(frozen=True)
class Row:
    """The figures of one method in the file."""

    method: str
    tokens_per_second: float
    speed_up: Mapping[str, Any] | None
    groups: Mapping[str, Any]
    mean_acceptance_length: float
    forwards_per_token: float
    decoder_share: float
    equal_to_plain: int
    prompts: int
    predicted: Mapping[str, Any] | None = None

    @property
    def over(self) -> Interval | None:
        """The speed-up over plain decoding.

        It raises InvalidInput if the file's value is no interval.
        """
        return _interval(self.method, self.speed_up)

    @property
    def tokens_a_forward(self) -> float:
        return 1 / self.forwards_per_token if self.forwards_per_token > 0 else 0.0

    @property
    def suspicious(self) -> bool:
        """True if the speed-up is larger than the saved forwards can explain."""
        if self.over is None or not verifies(self.method, parse(self.method).guarantee):
            return False
        return is_suspicious(self.over.low, 1.0, self.forwards_per_token)

    def over_plain(self) -> str:
        """Return the table's cell with the speed-up over plain decoding."""
        return marked(spread(self.over), self.suspicious)


@dataclass(frozen=True)
class MethodRows:
    """The methods of a file by name, and the file's whole JSON object."""

    methods: Mapping[str, Row]
    facts: Mapping[str, Any]


def read_rows(path: Path, data: Mapping[str, Any]) -> MethodRows:
    """Read the methods of a file.

    Raises:
        InvalidInput: a field is wrong; the error names it.
    """
    entries = data["methods"]
    if not entries:
        raise InvalidInput(f"{path.name} methods", entries, "give a list of methods")
    rows = [build(Row, entry, f"methods[{n}]") for n, entry in enumerate(entries)]
    return MethodRows({row.method: row for row in rows}, data)


def sheet_of_methods(found: MethodRows) -> Sheet:
    """Make the sheet of a file of ``tools/figures/methods.py``."""
    rows, data = list(found.methods.values()), found.facts
    machine = data.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    draft = f", draft model {data['draft_model']}" if data.get("draft_model") else ""
    return Sheet(
        title=f"Methods on {data.get('model')}",
        lines=tuple(map(_line, rows)),
        conditions=(
            ("Model", f"{data.get('model')}{draft}, {data.get('backend')}, greedy"),
            ("Inputs", f"{rows[0].prompts} prompts in {len(rows[0].groups)} groups, at most "
             f"{data.get('max_tokens')} new tokens each"),
            ("Machine", f"{machine.get('cpu')}, {machine.get('cores')} cores"),
            ("Version", f"{data.get('date')}, commit {str(data.get('commit'))[:12]}"),
        ),
        tiles=_tiles(rows),
        baseline=REFERENCE,
        quality_label="",
        groups_over=True,
        head=HEAD,
        notes=("Speed-ups are token-weighted and paired by prompt, with 95 % bootstrap intervals. "
               "Every output is compared with plain decoding's, token by token.",),
        doubts=(SUSPICIOUS,) if any(row.suspicious for row in rows) else (),
    )  # fmt: skip


def _line(row: Row) -> Line:
    is_plain, equal = row.method == REFERENCE, row.equal_to_plain == row.prompts
    standing = "" if is_plain else _standing(row.method, equal)
    counted = f"{row.equal_to_plain}/{row.prompts}"
    badges = {"": "plain decoding", "broken": f"differs from plain: {counted} equal"}
    value = row.tokens_per_second
    return Line(
        name=row.method,
        family=PLAIN if is_plain else parse(row.method).method.name,
        standing=standing,
        badge=badges.get(standing, f"{standing} {counted}"),
        speed=Interval(value, value, value),
        over=row.over,
        groups={
            group: found
            for group, entry in row.groups.items()
            if row.prompts >= ENOUGH_OF_A_GROUP * len(row.groups)
            and (found := _interval(f"{row.method} {group}", entry)) is not None
        },
        cells=(
            badges.get(standing, f"{standing} {counted}"), number(value), row.over_plain(),
            number(row.tokens_a_forward), number(row.mean_acceptance_length),
            f"{100 * row.decoder_share:.0f} %",
        ),
        muted=is_plain,
    )  # fmt: skip


def _standing(method: str, equal: bool) -> str:
    promised = parse(method).guarantee
    return "lossy" if promised == "lossy" else "exact" if equal else "broken"


def _interval(where: str, entry: Any) -> Interval | None:
    return None if entry is None else build(Interval, entry, where)


def _tiles(rows: list[Row]) -> tuple[Tile, ...]:
    known = [(row.over, row) for row in rows if row.over]
    if not known:
        return ()
    over, best = max(known, key=lambda entry: entry[0].value)
    same, all_ = sum(row.equal_to_plain for row in rows), sum(row.prompts for row in rows)
    return (
        Tile(f"{number(over.value)}×", f"plain decoding, with {best.method}",
             f"{number(over.low)} to {number(over.high)}"),
        Tile(number(best.tokens_per_second), "tokens/s", best.method),
        Tile(f"{same}/{all_}", "outputs equal to plain decoding's", bad=same < all_),
    )  # fmt: skip
