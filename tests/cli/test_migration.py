"""The engine understands every option that the quick start gives to users of other engines."""

import json
import re

import pytest
from typer.main import get_command

from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from paradecode.methods.choice import choose
from paradecode.methods.specs import parse
from repository import ROOT

PAGE = (ROOT / "docs" / "index.md").read_text("utf-8")
ROWS = [
    (there, here)
    for there, here in re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    if not there.startswith("-")
]
HERE = " ".join(here for _, here in ROWS)
SPECS = re.findall(r"--decoder (?:\"(.+?)\"|([\w+-]+))", HERE)
CONFIGS = re.findall(r"--speculative-config '(.+?)'", HERE)


def options(*commands: str) -> set[str]:
    known = get_command(app).commands  # type: ignore[attr-defined]
    parameters = [p for command in commands for p in known[command].load().params]
    return {name for p in parameters for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("spec", [quoted or bare for quoted, bare in SPECS])
def test_decoders_are_understood(spec: str) -> None:
    parse(spec)


def test_there_are_decoders() -> None:
    assert len(SPECS) > 12
    assert len(CONFIGS) == 4


@pytest.mark.parametrize("config", CONFIGS)
def test_vllm_configurations_are_understood(config: str) -> None:
    assert choose("auto", config) == choose("auto", json.loads(config))


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mtp", "p-eagle"])
def test_a_head_is_vllms_model(method: str) -> None:
    own = choose(f"{method}(head='there',num_speculative_tokens=3)")
    config = {"method": method, "model": "there", "num_speculative_tokens": 3}
    assert choose("auto", json.dumps(config)) == choose("auto", config) == own
    with pytest.raises(InvalidInput, match="under another name"):
        choose("auto", {**config, "head": "there"})


def test_flags_exist_here() -> None:
    named = set(re.findall(r"`(--[\w-]+)", HERE))
    assert {"--draft-model", "--kv-tokens"} <= named
    assert named <= options("generate", "serve")


def test_flags_that_are_the_same_are_accepted() -> None:
    same = [there for there, here in ROWS if here == "the same" and "`-" in there]
    assert len(same) == 3
    for there in same:
        assert set(re.findall(r"`(--?[\w-]+)`", there)) <= options("serve"), there
