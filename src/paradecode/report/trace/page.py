"""The viewer: one page that holds its style, its program and a trace, and asks for nothing else.

The model's text is hostile: it is embedded as JSON in which no character can end the element, the
program only ever writes it as text, and the page's own policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path

from paradecode.report.trace.schema import Trace

VIEWER = Path(__file__).with_name("viewer")
SCRIPTS = ("dom.js", "replay.js", "output.js", "tree.js", "canvas.js", "timeline.js", "player.js")


def page(trace: Trace) -> str:
    """A complete HTML document, ASCII but for the viewer's own signs."""
    style = _asset("page.css")
    program = '"use strict";\n{\n' + "\n".join(_asset(name) for name in SCRIPTS) + "}\n"
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_digest(style)}; script-src {_digest(program)}"
    )
    parts = {
        "policy": policy,
        "title": escape(f"{trace['decoder']} on {trace['model']}"),
        "style": style,
        "trace": embedded(trace),
        "program": program,
    }
    # The parts are put in between the pieces of the template, so that none is searched for marks.
    head, *rest = _asset("page.html").split("{{")
    html = [head]
    for chunk in rest:
        name, _, after = chunk.partition("}}")
        html += [parts[name], after]
    return "".join(html)


def embedded(value: object) -> str:
    """JSON for the inside of a script element: ASCII, and without ``<``, ``>`` and ``&``."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return (VIEWER / name).read_text("utf-8")
