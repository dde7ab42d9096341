"""A certificate for people: what was tried, what was found, what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text as RichText

from paradecode.measure.certificate.certify import Certificate
from paradecode.measure.certificate.distribution import LawTest
from paradecode.measure.certificate.ties import FirstDifference

SHOWN = 6
"""Divergences that are listed for each check; the JSON has all."""
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
"""Token id -> its text."""


def report(certificate: Certificate, spell: Spell) -> RenderableType:
    """The whole certificate, for a Rich console."""
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


def _checks(certificate: Certificate) -> Table:
    table = Table("check", "runs", "as promised", "drafted", "kept")
    equality, law = certificate.equality, certificate.distribution
    if equality is not None:
        table.add_row(
            f"plain decoding's tokens ({equality.tokens})",
            str(equality.runs), str(equality.equal), str(equality.drafted), str(equality.accepted),
        )  # fmt: skip
    for way in certificate.invariance:
        cached = f" ({way.cached_tokens} tokens)" if way.cached_tokens else ""
        table.add_row(way.name + cached, str(way.runs), str(way.equal), "", "")
    if law is not None:
        verdict = "yes" if law.same_law else "no"
        table.add_row(
            f"law of the sampled tokens (p = {law.p:.1e})",
            str(law.samples), verdict, str(law.drafted), str(law.accepted),
        )  # fmt: skip
    return table


def _differences(check: str, found: Sequence[FirstDifference], spell: Spell) -> list[Table]:
    if not found:
        return []
    table = Table(
        "prompt", "T", "at", "plain", "here", "top-2 gap", "gap", "rounding", "what it is",
        title=f"First differences ({check}): gaps in logits, above T = 0 'gap' in perturbed scores",
    )  # fmt: skip
    for one in found[:SHOWN]:
        table.add_row(
            escape(one.prompt), f"{one.temperature:g}", str(one.position),
            _token(one.expected, spell), _token(one.got, spell),
            _number(one.top_gap), _number(one.gap), _number(one.rounding), escape(_kind(one)),
        )  # fmt: skip
    if len(found) > SHOWN:
        table.add_row(f"{len(found) - SHOWN} more", *[""] * 8)
    return [table]


def _kind(one: FirstDifference) -> str:
    if one.error:
        return one.error[:120]
    return "near tie" if one.near_tie else "not rounding"


def _places(law: LawTest) -> Table:
    table = Table(
        "after", "tokens", "p(draft)", "cells", "distance", "G", "df", "p",
        title=f"Law of the next tokens: each p must exceed {law.level:.1e}",
    )  # fmt: skip
    for place in law.places:
        table.add_row(
            escape(place.text), str(place.prompt_tokens), f"{place.draft:.2f}", str(place.cells),
            f"{place.distance:.3f}", f"{place.statistic:.1f}", str(place.freedom),
            f"{place.p:.1e}",
        )  # fmt: skip
    table.add_row(
        "all", "", "", "", "", f"{law.statistic:.1f}", str(law.freedom), f"{law.p:.1e}"
    )  # fmt: skip
    return table


def _power(law: LawTest) -> Table:
    table = Table(
        "acceptance", "found after", "distance", "p", "must be found",
        title="Negative control: the same drafts, a wrong verifier",
    )  # fmt: skip
    for control in law.controls:
        after = "not found" if control.found_at is None else f"{control.found_at} requests"
        table.add_row(
            f"x {control.factor}", after, f"{control.distance:.3f}", f"{control.p:.1e}",
            "yes" if control.required else "",
        )  # fmt: skip
    return table


def _token(token: int | None, spell: Spell) -> str:
    return "the end" if token is None else escape(f"{token} {spell(token)!r}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
