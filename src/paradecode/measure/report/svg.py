"""Drawings as inline SVG that follows the page's theme."""

from __future__ import annotations

from html import escape

from paradecode.measure.report.drawing import (
    Dot,
    Drawing,
    Rect,
    Shape,
    Stroke,
    Text,
    outline,
    wrapped,
)  # fmt: skip
from paradecode.measure.report.palette import COLOURS

MARGIN = 24.0
FONTS = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"


def svg(drawing: Drawing) -> str:
    """An ``svg`` element; colours are the page's variables, values show on hover."""
    body = "".join(_shape(shape) for shape in drawing.shapes)
    label = escape(f"{drawing.title}. {drawing.subtitle}", quote=True)
    return (
        f'<svg viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}" role="img" '
        f'aria-label="{label}">{body}</svg>'
    )


def document(drawing: Drawing) -> str:
    """A file of its own: in the light colours, with title and subtitle, for pages and slides."""
    said = wrapped(drawing.subtitle, drawing.width, 13)
    top = MARGIN + 32.0 + 18 * len(said)
    width, height = drawing.width + 2 * MARGIN, top + drawing.height + MARGIN
    head: tuple[Shape, ...] = (
        Rect(0, 0, width, height, "paper", radius=12),
        Text(MARGIN, MARGIN + 16, drawing.title, 20, bold=True),
        *(Text(MARGIN, MARGIN + 38 + 18 * row, line, 13, colour="soft")
          for row, line in enumerate(said)),
    )  # fmt: skip
    body = "".join(_shape(shape) for shape in drawing.shapes)
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" font-family="{FONTS}">'
        f'{"".join(map(_shape, head))}<g transform="translate({_n(MARGIN)} {_n(top)})">{body}</g>'
        "</svg>\n"
    )
    for name, (light, _) in COLOURS.items():
        text = text.replace(f'"{_colour(name)}"', f'"{light}"')
    return text


def _shape(shape: Shape) -> str:
    if isinstance(shape, Rect):
        rounded = f' rx="{_n(shape.radius)}"' if shape.radius else ""
        return _element(
            "rect",
            f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(max(shape.width, 0))}" '
            f'height="{_n(shape.height)}"{rounded} fill="{_colour(shape.fill)}"'
            + _opacity(shape.opacity),
            shape.key, shape.tip,
        )  # fmt: skip
    if isinstance(shape, Stroke):
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in shape.points)
        colour = _colour(shape.colour)
        if shape.fill:
            look = f'fill="{colour}" stroke="none"'
            return _element(
                "polygon", f'points="{points}" {look}{_opacity(shape.opacity)}', shape.key, ""
            )
        dash = f' stroke-dasharray="{" ".join(map(_n, shape.dash))}"' if shape.dash else ""
        look = f'fill="none" stroke="{colour}" stroke-width="{_n(shape.width)}"{dash}'
        return _element(
            "polyline", f'points="{points}" {look}{_opacity(shape.opacity)}', shape.key, ""
        )
    if isinstance(shape, Dot):
        colour = _colour(shape.colour)
        fill = _colour("paper") if shape.hollow else colour
        look = f'fill="{fill}" stroke="{colour if shape.hollow else _colour("paper")}" '
        look += f'stroke-width="{2 if shape.hollow else 1}"'
        if shape.shape == "circle":
            place = f'cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.radius)}"'
            return _element("circle", f"{place} {look}", shape.key, shape.tip)
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in outline(shape))
        return _element("polygon", f'points="{points}" {look}', shape.key, shape.tip)
    return _text(shape)


def _text(shape: Text) -> str:
    weight = ' font-weight="650"' if shape.bold else ""
    attributes = (
        f'x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" '
        f'text-anchor="{shape.anchor}" fill="{_colour(shape.colour)}"{weight}'
    )
    if shape.halo:
        attributes += f' stroke="{_colour("paper")}" stroke-width="4" paint-order="stroke"'
    return _element("text", attributes, shape.key, shape.tip, escape(shape.text, quote=False))


def _element(name: str, attributes: str, key: int | None, tip: str, inner: str = "") -> str:
    own = f' class="m k{key}"' if key is not None else ""
    title = f"<title>{escape(tip, quote=False)}</title>" if tip else ""
    return f"<{name}{own} {attributes}>{title}{inner}</{name}>"


def _opacity(value: float) -> str:
    return f' opacity="{_n(value)}"' if value < 1 else ""


def _colour(name: str) -> str:
    return f"var(--{name})"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
