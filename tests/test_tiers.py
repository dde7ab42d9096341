"""`make test` runs an instance for each part, case and room.

Further instances are marked ``wide``.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from paradecode.backends.native.backend import FORMATS
from paradecode.constraints.compile import KINDS
from paradecode.methods.parts import Part, known
from paradecode.methods.specs import methods
from paradecode.models.gguf_file import INTERLEAVED as ARCHITECTURES
from paradecode.models.heads.build import KINDS as HEADS
from paradecode.models.tiny import KINDS as TINY
from paradecode.testing.cases import CASES
from repository import ROOT
from tiers import diagonal

FIRST_TIER = "not slow and not wide"
PARTS = (
    "drafter", "schedule", "budget", "verifier", "policy", "blocks", "cache", "search", "scorer",
    "method",
)  # fmt: skip


def ours(part: Part) -> bool:
    """Decide whether a part comes with the package, since tests register parts as well."""
    return part.build.__module__.startswith("paradecode.")


NAMES: dict[str, Iterable[str]] = {
    **{kind: [name for name, part in known(kind).items() if ours(part)] for kind in PARTS},
    "constraint": KINDS, "backend": ("native", "torch"), "weight format": FORMATS,
    "architecture": (*TINY, *(name.removeprefix("diffusion-") for name in ARCHITECTURES)),
    "head": HEADS,
}  # fmt: skip


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> list[str]:
    """Return the names that pytest gives the tests of `make test`."""
    config = request.config
    whole = [Path(each).resolve() for each in config.args] == [ROOT / "tests"]
    if whole and not config.option.keyword:
        items = request.session.items
        return [item.nodeid for item in items if not {"slow", "wide"} & item.keywords.keys()]
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:schemathesis", "-q",
         "--collect-only", "-m", FIRST_TIER, "tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("kind", NAMES)
def test_every_part_has_a_test_of_the_first_tier(kind: str, run: list[str]) -> None:
    text = "\n".join(run).lower().replace("_", "-")
    missing = [
        name
        for name in NAMES[kind]
        if not re.search(rf"(?<![a-z0-9]){re.escape(name.replace('_', '-'))}(?![a-z0-9])", text)
    ]
    assert missing == []


def test_every_method_is_held_to_its_promise(run: list[str]) -> None:
    started = {
        test.partition("[")[2].partition("-toy")[0] for test in run if "::test_method[" in test
    }
    wanted = {
        name for name, method in methods().items() if method.training == "none" and ours(method)
    }
    assert wanted <= started


def test_every_case_meets_a_method_that_drafts(run: list[str]) -> None:
    met = [test for test in run if "::test_method[" in test and "[greedy-" not in test]
    assert [case for case in CASES if not any(test.endswith(f"-toy-{case}]") for test in met)] == []


def test_every_room_is_used_by_a_test_of_the_first_tier(run: list[str]) -> None:
    wings = ROOT / "src" / "paradecode", ROOT / "lab" / "src" / "paradecode_lab"
    rooms = [f"{wing.name}.{at.parent.name}" for wing in wings for at in wing.glob("*/__init__.py")]
    files = {ROOT / test.partition("::")[0] for test in run}
    used = "\n".join(file.read_text("utf-8") for file in files)
    assert [room for room in rooms if f"{room}." not in used and f"{room} " not in used] == []


def test_a_diagonal_has_every_value_of_every_axis() -> None:
    crossed = [{"a": a, "b": b, "c": c} for a in range(2) for b in range(4) for c in range(3)]
    kept = [crossed[place] for place in diagonal(crossed)]
    assert len(kept) == 4
    for axis, size in (("a", 2), ("b", 4), ("c", 3)):
        assert {each[axis] for each in kept} == set(range(size))
    gaps = [each for each in crossed if each != {"a": 1, "b": 3, "c": 0}]
    assert {gaps[place]["b"] for place in diagonal(gaps)} == set(range(4))
    assert diagonal([{"case": number} for number in range(5)]) == [0, 1, 2, 3, 4]
