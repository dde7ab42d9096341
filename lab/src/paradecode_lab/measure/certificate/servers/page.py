"""Writes a server's certificate as JSON, as Markdown, and as a page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import isnan
from typing import Any

from paradecode_lab.measure.certificate.servers.certify import ServerCertificate
from paradecode_lab.measure.certificate.servers.places import PlaceResultOfSides
from paradecode_lab.measure.certificate.servers.sides import DraftCount
from paradecode_lab.measure.certificate.servers.tokens import SidesCompared
from paradecode_lab.measure.machine import stamp
from paradecode_lab.measure.tables import table

SCHEMA = "paradecode-server-certificate/1"
SHOWN = 12
"""Number of differences that the page lists; the JSON file has all."""
SAID = {
    "pass": "PASS: nothing that was tried shows that speculation changes the answers.",
    "fail": "FAIL: speculation changes the answers by more than the server's own noise.",
    "none": "NO CERTIFICATE: what was tried proves nothing.",
}
SCOPE = (
    "This page speaks of speculation, not of quality: it says whether the speculative answers are "
    "those of the same server without speculation, and not whether those are good."
)
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;border-bottom:1px solid "
    "#8886;text-align:right}td:first-child,th:first-child{text-align:left}"
)


@dataclass(frozen=True)
class PagePart:
    """A part of the page: a sentence or two, and a table that may have no rows."""

    said: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def server_record(found: ServerCertificate, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the whole certificate as a mapping, ready for ``json.dumps``.

    Args:
        facts: what was tested: servers, models, fields of the requests, the user's words.
    """
    now = stamp()
    return _without_nan({
        "schema": SCHEMA, "verdict": found.verdict, "created": now["created"],
        "commit": now["commit"], "machine": asdict(now["machine"]), **facts, **asdict(found),
    })  # fmt: skip


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and isnan(value) else value


def parts(found: ServerCertificate, facts: dict[str, Any]) -> list[PagePart]:
    """Return what the page says, in its order."""
    listed = [PagePart(SAID[found.verdict])]
    listed += [PagePart(f"Failed: {each}.") for each in found.failures]
    listed += [PagePart(f"Missing: {each}.") for each in found.missing]
    listed.append(PagePart(SCOPE))
    rows = tuple((name, str(value)) for name, value in facts.items() if value)
    listed.append(PagePart("What was tested:", ("", ""), rows))
    listed.append(PagePart(
        f"{found.texts} prompts at {found.plan.max_tokens} tokens. Plain decoding against itself: "
        "what differs here is the server's own noise.",
        ("plain, asked for", "answers", "equal", "largest change of a log-probability"),
        tuple((way.way, str(way.runs), str(way.equal), _figure(way.noise)) for way in found.noise),
    ))  # fmt: skip
    listed.append(PagePart(
        "Speculative answers against plain ones:",
        ("speculative", "answers", "equal", "differ where plain moves too",
         "within plain's noise", "others", "drafted", "kept", "counted by"),
        tuple(map(_compared, found.tokens)),
    ))  # fmt: skip
    differences = [(way.way, each) for way in found.tokens for each in way.differences]
    if differences:
        listed.append(PagePart(
            "First differences, with the gap of plain decoding's two best log-probabilities:",
            ("prompt", "T", "speculative", "at", "plain", "here", "gap", "plain moves there"),
            tuple(
                (each.case, f"{each.temperature:g}", way, str(each.position), repr(each.expected),
                 repr(each.got), _figure(each.gap), "yes" if each.moves else "no")
                for way, each in differences[:SHOWN]
            ),
        ))  # fmt: skip
    if found.law:
        worst = max(result.test.smallest for result in found.law)
        listed.append(PagePart(
            f"The law at temperature {found.plan.temperature:g}: draws of a few tokens, and the "
            "word behind a place where a draft was verified. A shift of a word's probability by "
            f"{worst:.4f} at any of these places would have been found with a chance of 99 %.",
            ("place", "plain draws", "speculative", "word", "plain", "speculative share", "p",
             "must exceed", "smallest shift found", "drafted a draw"),
            tuple(row for result in found.law for row in _place(result)),
        ))  # fmt: skip
        listed.append(PagePart(
            "Whole draws, and plain decoding's first half against its second:",
            ("place", "p of whole draws", "must exceed", "smallest p of the halves"),
            tuple(
                (_name(result), f"{result.test.whole_p:.1e}", f"{result.test.whole_level:.1e}",
                 f"{min([result.halves.whole_p, *(w.p for w in result.halves.words)]):.1e}")
                for result in found.law
            ),
        ))  # fmt: skip
    return [
        *listed,
        *(PagePart(note) for note in found.notes),
        PagePart(f"It took {found.seconds:.0f} s."),
    ]


def markdown_page(title: str, listed: Sequence[PagePart]) -> str:
    """Return the page as Markdown."""
    texts = [f"# {title}"]
    for part in listed:
        texts.append(part.said)
        if part.rows:
            texts.append(table(part.head, [[_plain(cell) for cell in row] for row in part.rows]))
    return "\n\n".join(texts) + "\n"


def html_page(title: str, listed: Sequence[PagePart]) -> str:
    """Return the page as one HTML document, which loads nothing."""
    body = [f"<h1>{escape(title)}</h1>"]
    for part in listed:
        body.append(f"<p>{escape(part.said)}</p>")
        if part.rows:
            rows = [("th", part.head), *(("td", row) for row in part.rows)]
            lines = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in rows)
            body.append("<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _compared(way: SidesCompared) -> tuple[str, ...]:
    moving = sum(each.moves for each in way.differences)
    ties = sum(each.near_tie and not each.moves for each in way.differences)
    others = len(way.differences) - moving - ties
    counts = (way.runs, way.equal, moving, ties, others)
    return (way.way, *map(str, counts), *_counts(way.drafts))


def _counts(drafts: DraftCount | None) -> tuple[str, str, str]:
    if drafts is None:
        return "unknown", "unknown", "nobody"
    drafted = "unknown" if drafts.drafted is None else str(drafts.drafted)
    return drafted, str(drafts.accepted), drafts.source


def _place(result: PlaceResultOfSides) -> list[tuple[str, ...]]:
    test, drafts = result.test, result.drafts
    share = "" if drafts is None else f"{(drafts.drafted or 0) / result.draws:.2f}"
    return [
        (_name(result), str(test.plain), str(test.drafted), repr(each.word), f"{each.plain:.4f}",
         f"{each.drafted:.4f}", f"{each.p:.1e}", f"{test.word_level:.1e}",
         f"{each.smallest:.4f}", share)
        for each in test.words
    ]  # fmt: skip


def _name(result: PlaceResultOfSides) -> str:
    line = result.place.prompt.rsplit("\n", 1)[-1]
    return f"{line}{''.join(result.place.prefix)} ..."


def _figure(value: float) -> str:
    return "unknown" if isnan(value) else f"{value:.3g}"


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
