"""Shows a certificate in the terminal: the tests, their results, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text as RichText

from paradecode_lab.measure.certificate.certify import Certificate
from paradecode_lab.measure.certificate.distribution import LawTest
from paradecode_lab.measure.certificate.ties import FirstDifference

SHOWN = 6
"""Number of differences that are listed for each check; the JSON file lists all."""
PROMISES = {
    "exact": "exactly the tokens of plain decoding",
    "distribution": "the law of plain decoding, and its tokens at temperature 0",
    "lossy": "neither the tokens nor the law of plain decoding",
}
VERDICTS = {
    "pass": ("green", "PASS: nothing that was tried contradicts the promise."),
    "fail": ("red", "FAIL"),
    "lossy": ("yellow", "LOSSY: this method claims no losslessness; below is how far it departs."),
}
Spell = Callable[[int], str]
"""Maps a token id to its text."""


def report(certificate: Certificate, spell: Spell) -> RenderableType:
    """Return the whole certificate as tables and texts for a Rich console."""
    parts: list[RenderableType] = [
        RichText(f"{certificate.subject}: promises {PROMISES[certificate.guarantee]}"),
        _checks(certificate),
    ]
    if certificate.equality is not None:
        parts += _differences("alone", certificate.equality.divergences, spell)
    for way in certificate.invariance:
        parts += _differences(way.name, way.divergences, spell)
    law = certificate.distribution
    if law is not None:
        parts.append(_places(law))
        if law.controls:
            parts.append(_power(law))
    parts += [RichText(f"note: {note}", "dim") for note in certificate.notes]
    colour, words = VERDICTS[certificate.verdict]
    if certificate.verdict == "lossy":
        parts += [RichText(f"found: {reason}") for reason in certificate.failures]
    else:
        parts += [RichText(f"failed: {reason}", "red") for reason in certificate.failures]
    parts.append(RichText(f"{words} ({certificate.seconds:.0f} s)", f"bold {colour}"))
    return Group(*parts)


def _table(title: str | None, head: str, rows: Iterable[Sequence[object]]) -> Table:
    """Build a table of texts and numbers.

    ``head`` has the names of its columns, divided by ``|``.
    """
    table = Table(*head.split("|"), title=title)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _checks(certificate: Certificate) -> Table:
    rows: list[Sequence[object]] = []
    equality, law = certificate.equality, certificate.distribution
    if equality is not None:
        name = f"plain decoding's tokens ({equality.tokens})"
        rows.append([name, equality.runs, equality.equal, equality.drafted, equality.accepted])
    for way in certificate.invariance:
        cached = f" ({way.cached_tokens} tokens)" if way.cached_tokens else ""
        rows.append([way.name + cached, way.runs, way.equal, "", ""])
    if law is not None:
        name, verdict = f"law of the sampled tokens (p = {law.p:.1e})", _yes(law.same_law, "no")
        rows.append([name, law.samples, verdict, law.drafted, law.accepted])
    return _table(None, "check|runs|as promised|drafted|kept", rows)


def _differences(check: str, found: Sequence[FirstDifference], spell: Spell) -> list[Table]:
    if not found:
        return []
    rows: list[Sequence[object]] = []
    for one in found[:SHOWN]:
        tokens = _token(one.expected, spell), _token(one.got, spell)
        gaps = _number(one.top_gap), _number(one.gap), _number(one.rounding)
        kind = one.error[:120] or ("near tie" if one.near_tie else "not rounding")
        where = escape(one.prompt), f"{one.temperature:g}", one.position
        rows.append([*where, *tokens, *gaps, escape(kind)])
    if len(found) > SHOWN:
        rows.append([f"{len(found) - SHOWN} more", *[""] * 8])
    title = f"First differences ({check}): gaps in logits, above T = 0 'gap' in perturbed scores"
    return [_table(title, "prompt|T|at|plain|here|top-2 gap|gap|rounding|what it is", rows)]


def _places(law: LawTest) -> Table:
    rows: list[Sequence[object]] = [
        [
            escape(place.text),
            place.prompt_tokens,
            f"{place.draft:.2f}",
            place.cells,
            f"{place.distance:.3f}",
            f"{place.statistic:.1f}",
            place.freedom,
            f"{place.p:.1e}",
        ]
        for place in law.places
    ]
    rows.append(["all", *[""] * 4, f"{law.statistic:.1f}", law.freedom, f"{law.p:.1e}"])
    title = f"Law of the next tokens: each p must exceed {law.level:.1e}"
    return _table(title, "after|tokens|p(draft)|cells|distance|G|df|p", rows)


def _power(law: LawTest) -> Table:
    rows = []
    for one in law.controls:
        after = "not found" if one.found_at is None else f"{one.found_at} requests"
        must = _yes(one.required, "")
        rows.append([f"x {one.factor}", after, f"{one.distance:.3f}", f"{one.p:.1e}", must])
    title = "Negative control: the same drafts, a wrong verifier"
    return _table(title, "acceptance|found after|distance|p|must be found", rows)


def _yes(true: bool, otherwise: str) -> str:
    return "yes" if true else otherwise


def _token(token: int | None, spell: Spell) -> str:
    return "the end" if token is None else escape(f"{token} {spell(token)!r}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
