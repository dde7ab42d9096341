"""Tests the rules of structure: a room of the code imports only from rooms below it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from repository import ROOT
from tools.structure import (
    BUDGETS,
    LONGER_METHODS,
    METHOD_CODE,
    MODULES,
    circles,
    files_entered,
    long_methods,
    method_code,
    methods_in,
    over_budget,
    room_of,
    shared_names,
    upward,
    violations,
)


@pytest.mark.parametrize(
    "rule",
    [upward, circles, shared_names, over_budget, long_methods],
    ids=lambda rule: rule.__name__,
)
def test_nothing_breaks_a_rule_of_the_house(rule):
    """No rule about the structure of the code is broken.

    The rules are about imports from rooms above, circles of imports, class names with two meanings,
    and rooms and methods with too many lines.
    """
    assert not rule()


def test_a_room_without_a_budget_or_beyond_it_is_noticed(monkeypatch):
    monkeypatch.setitem(BUDGETS, "core", 10)
    assert list(over_budget()) == ["core"]


def test_a_longer_method_is_noticed(monkeypatch, tmp_path):
    monkeypatch.delitem(LONGER_METHODS, "suffix")
    assert list(long_methods()) == ["suffix"]
    family, body = tmp_path / "family.py", "    x = 1\n" * METHOD_CODE
    short = f"@drafter('short')\nclass Short:\n{body[:10]}"
    family.write_text(
        f"{short}\ndef helper():\n{body}\n@drafter('long')\nclass Long:\n    y = helper()\n"
    )
    assert methods_in(family) == {"short": (3, set()), "long": (METHOD_CODE + 4, set())}


def test_what_may_be_longer_is():
    code = method_code()
    assert all(code[method] > METHOD_CODE for method in LONGER_METHODS)


def test_a_test_file_has_a_name_of_its_own():
    """Test files have different names, because pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_tests_mirror_the_rooms():
    """A folder of tests has the name of what it tests.

    Two folders are exceptions: checks of whole models concern all rooms, and a folder named torch
    would be taken for PyTorch.
    """
    tests = ROOT / "tests"
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    known = (ROOT / "src" / "paradecode", ROOT / "lab" / "src" / "paradecode_lab", ROOT)
    assert {
        str(folder) for folder in folders if not any((place / folder).is_dir() for place in known)
    } == {"default_model", "backends/pytorch"}


@pytest.mark.parametrize(("decoder", "most"), [("greedy", 14), ("prompt-lookup", 22)])
def test_a_step_enters_few_files(decoder, most):
    pytest.importorskip("paradecode.backends.native._core")
    assert len(files_entered(decoder)) <= most


def test_every_floor_of_the_design_is_seen():
    rooms = {room_of(module) for module in MODULES}
    assert {"core", "models", "backends.interface", "backends.torch", "methods", "engine"} <= rooms


@pytest.mark.parametrize(("module", "source"), [
    ("paradecode.core.tree", "from paradecode.methods import specs"),
    ("paradecode.core.tree", "from paradecode import LLM"),
    ("paradecode.core.tree", "import paradecode"), ("paradecode.core.tree", "import torch"),
    ("paradecode.core.tree", "def late():\n    import paradecode.models.config"),
    ("paradecode.core.tree", "from ..engine.engine import Engine"),
    ("paradecode.core.tree", "from .. import engine"),
    ("paradecode.core.tree", "if TYPE_CHECKING:\n    from paradecode.engine.cost import Load"),
    ("paradecode.core.tree", "import_module('paradecode.engine.engine')"),
    ("paradecode.models.config", "from paradecode.backends.interface import PAGE"),
    ("paradecode.models.config", "from paradecode.methods.specs import parse"),
    ("paradecode.backends.interface", "from paradecode.methods.specs import parse"),
    ("paradecode.backends.torch.model", "import paradecode.backends.native"),
    ("paradecode.backends.torch.model", "from paradecode.backends import open_backend"),
    ("paradecode.backends.native.anything", "from paradecode.backends.torch import model"),
    ("paradecode.backends.native.anything", "from paradecode.engine.kv import KVCache"),
    ("paradecode.methods.specs", "from paradecode.models.config import ModelConfig"),
    ("paradecode.methods.specs", "from paradecode.backends.interface import Span"),
    ("paradecode.methods.specs", "from paradecode.engine.sequence import LiveSequence"),
    ("paradecode.methods.specs", "import torch.nn as nn"),
    ("paradecode.engine.engine", "from paradecode.backends.torch.backend import TorchBackend"),
    ("paradecode.engine.engine", "from paradecode.backends import open_backend"),
    ("paradecode.engine.engine", "from paradecode.llm import LLM"),
    ("paradecode.llm", "from paradecode.serve import app"),
    ("paradecode.llm", "from paradecode import cli"),
    ("paradecode.serve.app", "from paradecode.cli import main"),
    ("paradecode.cli.demo", "from paradecode_lab.measure import tables"),
    ("paradecode_lab.measure.tables", "from paradecode_lab.training import running"),
    ("paradecode.nowhere", ""),
])  # fmt: skip
def test_violations_are_noticed(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), [
    ("paradecode.core.tree", "import math\nimport numpy as np\nfrom . import errors"),
    ("paradecode.core.tree", "'paradecode.llm has a long docstring'"),
    (
        "paradecode.models.config",
        "import gguf\nfrom paradecode.core.errors import InvalidInput",
    ),
    ("paradecode.engine.engine", "from paradecode.backends.interface import Span"),
    ("paradecode.engine.engine", "from paradecode.backends import interface"),
    ("paradecode.llm", "from paradecode.backends import open_backend"),
    ("paradecode.cli", "from paradecode import LLM, __version__"),
])  # fmt: skip
def test_imports_from_below_are_fine(module, source):
    assert violations(module, source) == []


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_torch_without_the_torch_backend():
    """Importing all rooms that do not need PyTorch does not import PyTorch."""
    wanted = [
        module
        for module in MODULES
        if room_of(module) in {"", "core", "models", "decoders", "engine", "llm", "backends",
                               "backends.interface", "backends.native"}
        and module != "paradecode.backends.native.backend"  # It needs the built core.
    ]  # fmt: skip
    lines = ["import importlib, sys", f"for name in {wanted!r}: importlib.import_module(name)"]
    run_python("\n".join([*lines, "assert 'torch' not in sys.modules, 'torch was imported'"]))


@pytest.mark.wide
def test_the_torch_check_can_fail():
    with pytest.raises(AssertionError, match="torch was imported"):
        run_python(
            "import sys\nimport paradecode.backends.torch.model\n"
            "assert 'torch' not in sys.modules, 'torch was imported'"
        )
