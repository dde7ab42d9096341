"""Make the viewer: one page with its style, its program and a trace. It loads nothing else.

Text from a model may be hostile. It is embedded as JSON without characters that could end the
element. The program writes it only as text, and the page's policy allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from pathlib import Path

from paradecode.trace.record import Trace

VIEWER = Path(__file__).with_name("viewer")
SCRIPTS = ("dom.js", "replay.js", "output.js", "tree.js", "canvas.js", "search.js", "timeline.js",
           "player.js")  # fmt: skip


def page(trace: Trace) -> str:
    """Return a complete HTML document. Only the viewer's own signs are not ASCII."""
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
    # Text that is filled in is not searched for placeholders again.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def embedded(value: object) -> str:
    """Return JSON for a script element: ASCII, without ``<``, ``>`` and ``&``."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _asset(name: str) -> str:
    return (VIEWER / name).read_text("utf-8")
