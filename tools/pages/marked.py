"""Replaces generated parts of pages that are otherwise written by hand."""

from __future__ import annotations

from pathlib import Path

from paradecode.core.errors import InvalidInput


def insert(document: str, name: str, text: str) -> str:
    """Replace the text between the markers ``name:begin`` and ``name:end`` of a document.

    Raises:
        InvalidInput: the document has no such markers.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise InvalidInput("document", document[:40], f"write {begin} and {end} into it")
    return f"{before}{begin}\n{text}\n{end}{after}"


def put(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers in a file."""
    path.write_text(insert(path.read_text("utf-8"), name, text), "utf-8")
