"""The floors of the house: a room imports only from the floors below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "paradecode"

CORE = {"core"}
MODELS = CORE | {"models"}
INTERFACE = MODELS | {"backends.interface"}
BACKENDS = INTERFACE | {"backends", "backends.torch", "backends.native"}
FRONT = BACKENDS | {"decoders", "engine", "constraints", "completion", "llm"}
# Training makes what methods need, tests and benchmarks run both: they may use one another.
TOP = {"bench", "certificate", "replay", "report", "serve", "training", "testing", "tune"}

ALLOWED = {
    "core": CORE,
    "models": MODELS,
    "backends.interface": INTERFACE,
    "backends.torch": INTERFACE | {"backends.torch"},
    "backends.native": INTERFACE | {"backends.native"},
    "backends": BACKENDS,  # The factory: the one place that knows every backend.
    "decoders": CORE | {"decoders"},
    "engine": INTERFACE | {"decoders", "engine"},
    "constraints": MODELS | {"constraints"},
    "completion": INTERFACE | {"decoders", "engine", "completion"},
    "llm": FRONT,
    "": FRONT,  # paradecode/__init__.py: what users import.
    **{room: FRONT | TOP | {""} for room in TOP},
    "cli": FRONT | TOP | {"", "cli"},
    "__main__": FRONT | TOP | {"", "cli"},
}
"""Room -> rooms it may import from."""

LIBRARIES = {"core": {"numpy"}, "decoders": {"numpy"}, "engine": {"numpy"}}
"""Room -> packages outside the standard library; rooms that are not named may use any."""


def name_of(path: Path) -> str:
    """Dotted module name of a file below ``SOURCE``."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str, rooms: dict[str, set[str]] = ALLOWED) -> str | None:
    """The room a module is in: the longest entry of ALLOWED that contains it."""
    inner = module.removeprefix("paradecode").removeprefix(".")
    parts = inner.split(".") if inner else []
    if not parts:
        return ""
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in rooms:
            return ".".join(parts[:end])
    return None


def imports(module: str, source: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import, at any depth, deferred and by name included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                is_module = inner in MODULES or (base == "paradecode" and alias.name != "*")
                yield node.lineno, inner if is_module and room_of(inner) is not None else base
        elif isinstance(node, ast.Constant) and node.value in MODULES.keys() - {"paradecode"}:
            # A module named in a text is imported by it: import_module, find_spec, registries.
            yield node.lineno, str(node.value)


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """What in ``source``, the text of ``module``, breaks the house rules."""
    room = room_of(module)
    if room is None:
        return [f"{module} is on no floor; give it one in ALLOWED"]
    found = []
    for line, target in imports(module, source, is_package):
        package = target.split(".")[0]
        where = f"{module}:{line} imports {target}"
        if package == "paradecode":
            if room_of(target) not in ALLOWED[room]:
                found.append(f"{where}, which is not below {room or 'the package'}")
        elif package not in sys.stdlib_module_names and package not in LIBRARIES.get(
            room, {package}
        ):
            found.append(f"{where}; {room} uses the standard library and NumPy only")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_upward(module):
    path = MODULES[module]
    assert violations(module, path.read_text("utf-8"), path.name == "__init__.py") == []


def test_every_floor_of_the_design_is_seen():
    rooms = {room_of(module) for module in MODULES}
    assert {"core", "models", "backends.interface", "backends.torch", "decoders", "engine"} <= rooms


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("paradecode.core.tree", "from paradecode.decoders import registry"),
        ("paradecode.core.tree", "from paradecode import LLM"),
        ("paradecode.core.tree", "import paradecode"),
        ("paradecode.core.tree", "import torch"),
        ("paradecode.core.tree", "def late():\n    import paradecode.models.config"),
        ("paradecode.core.tree", "from ..engine.engine import Engine"),
        ("paradecode.core.tree", "from .. import engine"),
        ("paradecode.core.tree", "if TYPE_CHECKING:\n    from paradecode.engine.text import Text"),
        ("paradecode.core.tree", "import_module('paradecode.engine.engine')"),
        ("paradecode.models.config", "from paradecode.backends.interface import PAGE"),
        ("paradecode.models.config", "from paradecode.decoders.registry import parse"),
        ("paradecode.backends.interface", "from paradecode.decoders.registry import parse"),
        ("paradecode.backends.torch.model", "import paradecode.backends.native"),
        ("paradecode.backends.torch.model", "from paradecode.backends import open_backend"),
        ("paradecode.backends.native.anything", "from paradecode.backends.torch import model"),
        ("paradecode.backends.native.anything", "from paradecode.engine.cache import Cache"),
        ("paradecode.decoders.registry", "from paradecode.models.config import ModelConfig"),
        ("paradecode.decoders.registry", "from paradecode.backends.interface import Span"),
        ("paradecode.decoders.registry", "from paradecode.engine.sequence import LiveSequence"),
        ("paradecode.decoders.registry", "import torch.nn as nn"),
        ("paradecode.engine.engine", "from paradecode.backends.torch.backend import TorchBackend"),
        ("paradecode.engine.engine", "from paradecode.backends import open_backend"),
        ("paradecode.engine.engine", "from paradecode.llm import LLM"),
        ("paradecode.llm", "from paradecode.serve import app"),
        ("paradecode.llm", "from paradecode import cli"),
        ("paradecode.serve.app", "from paradecode.cli import main"),
        ("paradecode.nowhere", ""),
    ],
)
def test_violations_are_noticed(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
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
    ],
)
def test_imports_from_below_are_fine(module, source):
    assert violations(module, source) == []


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_torch_without_the_torch_backend():
    """Everything but the rooms that need PyTorch is imported, and PyTorch is not."""
    wanted = [
        module
        for module in MODULES
        if room_of(module) in {"", "core", "models", "decoders", "engine", "llm", "backends",
                               "backends.interface", "backends.native"}
        and module != "paradecode.backends.native.backend"  # Needs the built core.
    ]  # fmt: skip
    lines = ["import importlib, sys", f"for name in {wanted!r}: importlib.import_module(name)"]
    run_python("\n".join([*lines, "assert 'torch' not in sys.modules, 'torch was imported'"]))


def test_the_torch_check_can_fail():
    with pytest.raises(AssertionError, match="torch was imported"):
        run_python(
            "import sys\nimport paradecode.backends.torch.model\n"
            "assert 'torch' not in sys.modules, 'torch was imported'"
        )
