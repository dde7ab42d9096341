"""The engine's commands run where the laboratory, PyTorch and Matplotlib are not installed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paradecode.cli.later import LABORATORY
from program import paradecode
from repository import ROOT

MISSING = ("paradecode_lab", "torch", "matplotlib")
ALONE = f"""
import importlib.metadata, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
known = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **group: [
    entry for entry in known(**group) if not entry.value.startswith("paradecode_lab")
]
from paradecode.cli import main
main()
"""
MODEL = ("--model", "paradecode/tiny-autoregressive")


def start(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ALONE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.PIPE, text=True, **how,
    )  # fmt: skip


def run(*arguments: str, stdin: str = "", status: int = 0, **how: Any) -> str:
    process = start(*arguments, **how)
    out, error = process.communicate(stdin)
    assert process.returncode == status, error
    return out + error


@pytest.mark.first(1)
@pytest.mark.parametrize("arguments", [
    ("trace", "sort: Ben Sam Art", "--terminal", "--max-tokens", "4", *MODEL),
    ("info", "--profile", *MODEL), ("demo", "--max-tokens", "8"),
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_a_command_runs(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).strip()


@pytest.mark.wide
def test_chat_answers() -> None:
    assert run("chat", "--max-tokens", "4", *MODEL, stdin="Hello\n\n").strip()


@pytest.mark.wide
def test_generate_answers_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    asked = {"id": "a", "group": "g", "turns": ["sort: Ben Sam Art"], "max_tokens": 4}
    prompts.write_text(json.dumps(asked) + "\n", "utf-8")
    assert json.loads(run("generate", "--prompts", str(prompts), "--json", *MODEL))["id"] == "a"


def test_a_command_of_the_laboratory_names_its_package() -> None:
    said = run("tune", "--help", status=2)
    assert "tune" in said
    assert 'pip install "paradecode[lab]"' in said
    shown = run("--help")
    assert not [command for command in LABORATORY if f" {command} " in shown]


@pytest.mark.wide
def test_a_server_answers() -> None:
    pytest.importorskip("uvicorn")
    server = start("serve", "--port", "0", *MODEL)
    line = server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    _, error = server.communicate()
    assert line.startswith("ready: http://127.0.0.1:"), error


def test_a_decoder_of_another_package_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "add-a-method.md").read_text("utf-8")
    (tmp_path / "copy_bigram.py").write_text(page.split("```python\n")[1].split("```")[0], "utf-8")
    about = tmp_path / "copy_bigram-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: copy-bigram\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[paradecode.decoders]\nmine = copy_bigram\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    asked = ("generate", "sort: Ben Sam Art", "--max-tokens", "8", "--json", *MODEL)
    drafted = json.loads(run(*asked, "--decoder", "copy-bigram", env=env))
    assert drafted["text"] == json.loads(paradecode(*asked).stdout)["text"]
