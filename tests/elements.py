"""Reads the elements of an HTML page."""

from html.parser import HTMLParser
from typing import NamedTuple


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str | None]
    parts: list[str]
    """Pieces of the element's own text, without that of the elements inside it."""


class Elements(HTMLParser):
    """Reads all elements of a page in their order; tags that do not match raise an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append(Element(tag, dict(attrs), []))
        if tag not in ("meta", "br", "input", "hr"):
            self._open.append(self.found[-1])

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        if self._open:
            self._open[-1].parts.append(data)

    def raw(self) -> list[tuple[dict[str, str | None], str]]:
        """Return the attributes and the text of each script and style."""
        return [
            (e.attributes, "".join(e.parts)) for e in self.found if e.tag in ("script", "style")
        ]
