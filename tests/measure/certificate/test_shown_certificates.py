"""The certificates that the quick start shows have the stated verdict and exit status.

They run with small limits.
"""

import re
import shlex
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.models.catalogue import find
from paradecode_lab.measure.result_files import read_results
from repository import ROOT
from tools.peers.catalogue import engines, select

SMALL = ["--count", "2", "--max-tokens", "12", "--samples", "100"]
ENOUGH = ["--count", "12", "--max-tokens", "24", "--samples", "150"]
"""The smallest limits at which the control of a `distribution` method is found.

They take half a minute.
"""

SAID = {"passes": (0, "PASS"), "flagged": (1, "LOSSY")}


def shown() -> list[tuple[str, str]]:
    """Return (command, comment) for the page's blocks of long commands."""
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line.partition("#") for block in blocks for line in block.splitlines()]
    return [(command.strip(), comment.strip()) for command, _, comment in lines]


CERTIFICATES = [entry for entry in shown() if " verify " in entry[0]]


def test_one_of_each_promise_is_shown() -> None:
    comments = [comment for _, comment in CERTIFICATES]
    assert [comment.partition(":")[0] for comment in comments] == [
        "exact", "exact", "the same distribution", "lossy",
    ]  # fmt: skip


def certificates() -> Iterator[object]:
    for command, comment in CERTIFICATES:
        law = comment.startswith("the same distribution")
        limits = ENOUGH if law else SMALL
        marks = [pytest.mark.slow] if law else []
        yield pytest.param(command, comment, limits, id=command[34:], marks=marks)


@pytest.mark.wide
@pytest.mark.skipif(find("default").path is None, reason="the default model is not there")
@pytest.mark.parametrize(("command", "comment", "limits"), [*certificates()])
def test_verdict(command: str, comment: str, limits: list[str]) -> None:
    status, word = next(said for key, said in SAID.items() if key in comment)
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/paradecode"
    run = CliRunner().invoke(app, [*arguments, *limits])
    assert run.exit_code == status, run.output
    assert word in run.output


def test_the_headline_is_compared_with_what_the_run_measures() -> None:
    (make,) = [command for command, _ in shown() if command.startswith("make bench")]
    compared = [command for command, _ in shown() if " compare " in command]
    words = shlex.split(re.search(r'BENCH="(.*)"', make)[1])  # type: ignore[index]
    given = dict(zip(words[1::2], words[2::2]))
    measured = {e.name for e in select(engines(["prompt-lookup"]), given["--engines"].split(","))}
    assert measured >= {
        "paradecode-native/q4_1", "paradecode-native/q4_1+prompt-lookup", "llama-cpp/q4_1",
    }  # fmt: skip
    (compare,) = compared
    committed, own, _, baseline = shlex.split(compare)[-4:]
    results = read_results(ROOT / committed)
    assert own == f"bench/out/runs/{given['--name']}/results.json"
    assert baseline in measured <= {engine.name for engine in results.engines}
    assert {item.max_tokens for item in results.items} == {int(given["--max-tokens"])}
