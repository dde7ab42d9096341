"""The options of `paradecode generate` that constrain the answer work, or are refused."""

from __future__ import annotations

import json

import jsonschema
import pytest
from constraint_schemas import PERSON
from typer.testing import CliRunner

from paradecode.cli import app

pytest.importorskip("llguidance")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["generate", *arguments, "--max-tokens", "80"])
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.wide
def test_json_schema(tmp_path):
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON), "utf-8")
    code, output = run("Ann is 31 and likes red.", "--json-schema", str(file))
    assert code == 0
    jsonschema.validate(json.loads(output), PERSON)


def test_regex_choice_and_grammar(tmp_path):
    code, output = run("How old?", "--regex", "[0-9]{2} years", "--json")
    assert code == 0
    assert json.loads(output)["text"][2:] == " years"
    assert run("Is it?", "--choice", "perhaps", "--choice", "hardly")[1].strip() in (
        "perhaps",
        "hardly",
    )
    grammar = tmp_path / "words.lark"
    grammar.write_text('start: "one " /[a-z]{1,8}/', "utf-8")
    assert run("Say", "--grammar", str(grammar))[1].startswith("one ")


@pytest.mark.wide
def test_python(tmp_path):
    file = tmp_path / "shop.py"
    file.write_text("class Store:\n    def zzgreet(self): ...\n", "utf-8")
    code, output = run(
        "import shop\ns = shop.Store()\ns.zz", "--raw", "--python", str(file), "--json"
    )
    assert code == 0
    assert json.loads(output)["text"].startswith("greet")


def test_wrong_uses(tmp_path):
    missing = run("x", "--json-schema", str(tmp_path / "none.json"))
    assert missing[0] != 0
    assert "--json-schema" in missing[1]
    both = run("x", "--regex", "a", "--choice", "b")
    assert both[0] != 0
    assert "one constraint" in both[1]
    assert run("x", "--regex", "(")[0] != 0
