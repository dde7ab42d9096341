"""The constraint ``python``: every attribute that the output writes after a dot must exist.

It runs no code from a request. This folder is imported only when a request asks for the constraint,
and only :func:`python_constraint` is used from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paradecode.constraints.limits import refused
from paradecode.constraints.python.apart import MonitorApart
from paradecode.constraints.python.masks import MonitoredText
from paradecode.core.errors import InvalidInput

MAX_CODE = 1 << 18


def python_constraint(value: object, spellings: Sequence[bytes]) -> MonitoredText:
    """Return the constraint ``{"files": {file name: source}, "code": text before the output}``.

    Args:
        spellings: the bytes of each token id; empty for ids that are not text.

    Raises:
        InvalidInput: if the value has another form or is too large, or a file is not Python.
    """
    if not isinstance(value, Mapping) or not {"files"} <= value.keys() <= {"files", "code"}:
        fix = 'give {"files": {file name: source}, "code": text before the output}'
        raise refused(value, fix)
    code = value.get("code") or ""
    if not isinstance(code, str) or len(code) > MAX_CODE:
        fix = f"give a text of at most {MAX_CODE} characters"
        raise InvalidInput("constraint.value.code", code, fix)
    return MonitoredText(
        MonitorApart(value["files"]), spellings, code.encode("utf-8", "replace"), waits=True
    )
