"""Draws charts as SVG: inside a page, whose theme they follow, or as files of their own.

Marks carry their line's number and hover text in the id that matplotlib writes (see ``mark``); here
the number becomes a class, by which a page dims all other lines, and the text a ``title``.
"""

from __future__ import annotations

import re
from io import StringIO
from xml.etree import ElementTree

from paradecode_lab.measure.charts.chart import WIDTH, Chart
from paradecode_lab.measure.charts.pictures import poster
from paradecode_lab.measure.charts.style import COLOURS, drawing, light, new_figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
VARIABLES = {values[0]: f"var(--{name})" for name, values in COLOURS.items()}


def inline(chart: Chart) -> str:
    """Return a chart as an ``svg`` element in the page's colours, as wide as its container."""
    with drawing():
        figure = new_figure(WIDTH, chart.height)
        chart.paint(figure)
        root = _parsed(figure)
    for name in ("width", "height", "version"):
        root.attrib.pop(name)
    root.set("role", "img")
    root.set("aria-label", f"{chart.title}. {chart.subtitle}")
    for element in root.iter():
        style = element.get("style")
        if style:
            themed = re.sub("#[0-9a-f]{6}", lambda hue: VARIABLES.get(hue[0], hue[0]), style)
            element.set("style", themed)
    return _text(root)


def document(chart: Chart) -> str:
    """Return a chart as an SVG file of its own, with its title, in the light colours."""
    with drawing():
        return _text(_parsed(poster([chart]), light("paper"))) + "\n"


def _parsed(figure: object, background: str = "none") -> ElementTree.Element:
    """Return the SVG that matplotlib draws, without its style sheet and the names of its groups."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata=NO_METADATA, facecolor=background)  # type: ignore
    root = ElementTree.fromstring(out.getvalue())
    _prune(root)
    for element in root.iter():
        element.attrib.pop("clip-path", None)
        if element.tag != f"{{{SVG}}}g":
            continue  # Shapes that are used several times keep their names.
        own, bar, tip = element.attrib.pop("id", "").partition("|")
        if bar:
            element.set("class", f"m {own}")
        if tip:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = tip.replace("|", "\n")
            element.insert(0, title)
    for text in root.iter(f"{{{SVG}}}text"):
        text.set("style", re.sub(" font-family: [^;]*;", "", text.get("style", "")))
    root.set("style", f"stroke-linejoin: round; stroke-linecap: butt; font-family: {FONTS}")
    return root


def _prune(element: ElementTree.Element) -> None:
    """Remove style sheets, clipping paths and groups without content."""
    for child in list(element):
        _prune(child)
        name = child.tag.removeprefix(f"{{{SVG}}}")
        if name in ("style", "clipPath") or (name in ("defs", "g") and not len(child)):
            element.remove(child)


def _text(root: ElementTree.Element) -> str:
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    for element in root.iter():  # matplotlib indents; the file need not.
        element.tail = None
        if not (element.text or "").strip():
            element.text = None
    return ElementTree.tostring(root, "unicode")
