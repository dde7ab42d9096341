"""Shows which tests a run has skipped and why; the exit status is 1 if one could have run.

python -m tools.skipped REPORT [REASON ...]

The report is pytest's, from ``--junitxml``. Reasons that are given are allowed beside ``ALLOWED``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ALLOWED = (
    # This machine cannot run them.
    "no CUDA device", "no GPU", "this build has one kernel set",
    "needs podman", "needs systemd", "needs a Debian, as root, that can mount overlays",
    # There is nothing to test: the combined parts exclude one another.
    "it has no keys", "it drafts all levels", "not a drafter", "not with this model",
    "these parts say that they cannot work together", "this way ends early",
    # The installed version of a package does not have it.
    "this transformers has no DiffusionGemma",
    # An oracle that is installed by hand with `pip install peft`, which brings a package for
    # training.
    "could not import 'peft'",
)  # fmt: skip
"""Beginnings of the reasons for which continuous integration may skip a test."""


def reasons(report: Path) -> Counter[str]:
    """Return the reasons why tests were skipped, and the number of tests for each reason."""
    skipped = ElementTree.parse(report).iter("skipped")
    return Counter(each.get("message", "") for each in skipped)


def unexpected(found: Iterable[str], allowed: Iterable[str] = ()) -> list[str]:
    """Return the reasons that begin with none of the allowed ones."""
    known = (*ALLOWED, *allowed)
    return sorted(reason for reason in found if not reason.startswith(known))


def main(report: str, *allowed: str) -> int:
    """Print the reasons; returns 1 if one of them is unexpected."""
    found = reasons(Path(report))
    for reason, count in found.most_common():
        print(f"skipped {count:4}  {reason}")
    wrong = unexpected(found, allowed)
    for reason in wrong:
        print(f"Tests were skipped that could have run: {reason!r}. Install what they need, or add "
              "the reason to ALLOWED in tools/skipped.py.")  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
