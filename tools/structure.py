"""Shows the structure of the code in figures, and checks the floors that imports must respect.

    python -m tools.structure            # the figures
    python -m tools.structure --json     # the same for a program
    python -m tools.structure --seconds  # those of build and tests, too: ten minutes

A *circle* is a ring of files that import one another; imports inside functions and imports only for
types count too. An *upward arrow* is an import from a room that is not below. *Files entered* are
the files of the package in which some function ran during one step of the engine, in the middle of
an answer.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE, LABORATORY = ROOT / "src", ROOT / "lab" / "src"
PACKAGES = {"paradecode": SOURCE, "paradecode_lab": LABORATORY}
FOLDERS = ("src", "lab", "bench", "tools")
"""Folders of the project's own Python; tests are not counted."""

METHOD_FOLDERS = ("draft/drafters", "draft/schedules", "canvas/policies", "retrained")
PART_FOLDERS = (*METHOD_FOLDERS, "draft/budgets", "draft/verifiers", "canvas/caches")
"""Folders whose files are parts that users choose by name.

Such a file is no helper of another one.
"""
METHOD_CODE = 150
"""The most lines of code that a method may have.

All code counts that the method uses of its own file, and of modules that only this file uses. Code
that several methods of a file share counts for each of them.
"""
DECLARING = {"drafter", "head_method", "method", "policy"}
"""Decorators whose first argument is the name of a method."""
LONGER_METHODS = {
    "suffix": "its suffix automaton, 127 lines, is a data structure with papers of its own",
    "freedave": "it plans, verifies and accepts steps of a canvas: a whole loop of its own",
    "aded": "it learns trigrams and searches them with a bandit, two parts of its paper",
    "lookup-tree": "it is prompt-lookup, which it inherits, with a tree in place of the chain",
    "ppd": "its rule of where rows pay, 200 lines, serves hidden-transfer as well",
    "hidden-transfer": "it has PPD's rule of where rows pay, and rows that enter inner layers",
}
"""Method -> why it may have more lines than METHOD_CODE."""

STRING_OR_COMMENT = re.compile(
    r"""#[^\n]*|(\"{3}|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)

CORE = {"core"}
MODELS = CORE | {"models"}
INTERFACE = MODELS | {"backends.heads", "backends.interface"}
BACKENDS = INTERFACE | {"backends", "backends.torch", "backends.native"}
FRONT = BACKENDS | {"methods", "engine", "constraints", "completion", "search", "llm", ""}

ALLOWED = {
    "core": CORE,
    "models": MODELS,
    "backends.heads": CORE | {"backends.heads"},
    "backends.interface": INTERFACE,
    "backends.torch": INTERFACE | {"backends.torch"},
    "backends.native": INTERFACE | {"backends.native"},
    "backends": BACKENDS,  # The factory, which is the only place that knows every backend.
    "methods": CORE | {"methods"},
    "engine": INTERFACE | {"methods", "engine"},
    "constraints": MODELS | {"constraints"},
    "completion": INTERFACE | {"methods", "engine", "completion"},
    "search": BACKENDS | {"methods", "engine", "completion", "search"},
    "llm": FRONT - {""},
    "moved": {"core", "methods", "moved"},  # Old names of modules.
    "": FRONT | {"moved", "timing"},  # This is paradecode/__init__.py: what users import.
}
"""Room -> rooms from which it may import."""

UPSTAIRS = (
    ("prompts", "serve", "testing", "trace", "transformers"),
    ("timing",),  # Measures whether a speed-up is real.
    ("cli", "__main__"),
    ("lab.measure",),  # Records, journal, statistics, tables and charts.
    ("lab.measure.tasks", "lab.measure.replay", "lab.measure.certificate"),
    ("lab.measure.suites", "lab.measure.tune", "lab.measure.plan"),
    ("lab.measure.report",),
    ("lab.training",),
    ("lab", "lab.commands"),
)
"""The floors above the room ``front``, the lowest first.

A room imports itself and the rooms below its floor. The laboratory is a package of its own, and the
engine imports nothing of it.
"""

for _number, _floor in enumerate(UPSTAIRS):
    _below = {room for floor in UPSTAIRS[:_number] for room in floor}
    ALLOWED |= {room: FRONT | _below | {room} for room in _floor}
ALLOWED["__main__"] |= {"cli"}

BUDGETS = {
    "core": 1980,
    "models": 8330,
    "backends.heads": 530,
    "backends.interface": 270,
    "backends.torch": 1470,
    "backends.native": 550,
    "backends": 160,
    "methods": 9150,
    "engine": 2900,
    "constraints": 2090,
    "completion": 140,
    "search": 1250,
    "llm": 580,
    "paradecode": 30,
    "moved": 30,
    "__main__": 30,
    "prompts": 40,
    "serve": 9370,
    "testing": 1490,
    "trace": 390,
    "timing": 190,
    "transformers": 70,
    "cli": 1910,
    "lab.measure": 2720,
    "lab.measure.tasks": 420,
    "lab.measure.replay": 1090,
    "lab.measure.certificate": 1_850,
    "lab.measure.suites": 1400,
    "lab.measure.tune": 370,
    "lab.measure.plan": 820,
    "lab.measure.report": 860,
    "lab.training": 6540,
    "lab": 0,
    "lab.commands": 2070,
    "tools": 8060,
    "tests": 53200,
    "examples": 40,
    "plugins": 60,
}
"""Room -> the most lines of code that it may have.

A change that needs more raises the number, and its commit says why. Docstrings and comments do not
count, so none is shortened for it.
"""

LIBRARIES = {
    "core": {"numpy", "safetensors"},
    "backends.heads": {"numpy"},
    "methods": {"numpy", "typing_extensions"},  # Only type checkers need typing_extensions.
    "engine": {"numpy"},
}
"""Room -> packages outside the standard library that it may use. Other rooms may use any."""


def name_of(path: Path, root: Path) -> str:
    """Return the dotted module name of a file below ``root``."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path, root): path
    for package, root in PACKAGES.items()
    for path in sorted((root / package).rglob("*.py"))
}

NAMED = MODULES.keys() - PACKAGES.keys()


def room_of(module: str, rooms: Mapping[str, set[str]] = ALLOWED) -> str | None:
    """Return the room of a module: the longest entry of ALLOWED that contains it.

    It is None if no entry contains the module.
    """
    package, *parts = module.split(".")
    if package == "paradecode_lab":
        parts.insert(0, "lab")
    if not parts:
        return ""
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in rooms:
            return ".".join(parts[:end])
    return None


def imports(module: str, source: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, imported module) for every import, also in functions and by name."""
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
                is_module = inner in MODULES or (base in PACKAGES and alias.name != "*")
                yield node.lineno, inner if is_module and room_of(inner) is not None else base
        elif isinstance(node, ast.Constant) and node.value in NAMED:
            # A text that is a module's name imports it: import_module, find_spec or a registry.
            yield node.lineno, str(node.value)


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return what in ``source``, the text of ``module``, breaks the rules for imports."""
    room = room_of(module)
    if room is None:
        return [f"{module} is on no floor; give it one in ALLOWED"]
    found = []
    for line, target in imports(module, source, is_package):
        package = target.split(".")[0]
        where = f"{module}:{line} imports {target}"
        if package in PACKAGES:
            if room_of(target) not in ALLOWED[room]:
                found.append(f"{where}, which is not below {room or 'the package'}")
        elif package not in sys.stdlib_module_names and package not in LIBRARIES.get(
            room, {package}
        ):
            found.append(f"{where}; {room} uses the standard library and NumPy only")
    return found


def upward() -> list[str]:
    """Return every import of the package that breaks the rules for imports."""
    return [
        line
        for module, path in MODULES.items()
        for line in violations(module, path.read_text("utf-8"), path.name == "__init__.py")
    ]


@cache
def arrows() -> dict[str, set[str]]:
    """Return module -> modules of the package that it imports."""
    return {
        module: {
            target
            for _, target in imports(module, path.read_text("utf-8"), path.name == "__init__.py")
            if target in MODULES and target != module
        }
        for module, path in MODULES.items()
    }


def circles() -> list[list[str]]:
    """Return rings of modules that import one another, one ring of each tangle."""
    found, arrow = list[list[str]](), arrows()
    while True:
        try:
            TopologicalSorter(arrow).prepare()
            return found
        except CycleError as error:
            found.append(ring := sorted(set(error.args[1])))
            arrow = {one: arrow[one].difference(ring) for one in arrow.keys() - ring}


def shared_names() -> dict[str, list[str]]:
    """Return names of top-level classes that more than one module of the package defines."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def lines() -> dict[str, int]:
    """Count the lines of Python in each of ``FOLDERS``."""
    return {
        folder: sum(path.read_text("utf-8").count("\n") for path in (ROOT / folder).rglob("*.py"))
        for folder in FOLDERS
    }


@cache
def lines_of_code(path: Path) -> frozenset[int]:
    """Return the numbers of a Python file's lines of code.

    Blank lines, comments and docstrings are no code.
    """
    source = path.read_text("utf-8")
    docstrings: set[int] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            nodes += inner if isinstance(inner, list) else ()
    bare = STRING_OR_COMMENT.sub(_filled, source)
    lines = {number for number, line in enumerate(bare.split("\n"), 1) if line.strip()}
    return frozenset(lines - docstrings)


def code_lines(path: Path) -> int:
    """Return how many lines of code a file has."""
    return len(lines_of_code(path))


def _filled(found: re.Match[str]) -> str:
    """Replace a string by a letter in each of its lines, and a comment by nothing."""
    return "" if found[0].startswith("#") else "\n".join("x" * (found[0].count("\n") + 1))


def code() -> dict[str, int]:
    """Count the lines of code of each room, and of each folder beside the packages."""
    found = dict.fromkeys(BUDGETS, 0)
    for module, path in MODULES.items():
        found[room_of(module) or "paradecode"] += code_lines(path)
    for folder in ("tools", "tests", "examples", "plugins"):
        found[folder] = sum(code_lines(path) for path in (ROOT / folder).rglob("*.py"))
    return found


def wings() -> dict[str, int]:
    """Count the lines of code of the engine, of the laboratory with the tools, and of the tests."""
    found = code()
    beside = {"tools": "laboratory", "tests": "tests"}
    beside |= dict.fromkeys(("examples", "plugins"), "examples")
    sums: dict[str, int] = {}
    for room, lines in found.items():
        wing = beside.get(room, "laboratory" if room.startswith("lab") else "engine")
        sums[wing] = sums.get(wing, 0) + lines
    return sums


def over_budget() -> dict[str, str]:
    """Return the rooms that have more lines of code than BUDGETS allows."""
    return {
        room: f"{lines} lines of code, and its budget is {BUDGETS[room]}"
        for room, lines in code().items()
        if lines > BUDGETS[room]
    }


def methods_in(path: Path, module: str = "") -> dict[str, tuple[int, set[str]]]:
    """Return for each method that a file declares its lines of code, and the modules they import.

    The lines are those of this file that the method uses, directly or through other definitions.
    """
    code, defined, declared = lines_of_code(path), dict[str, ast.stmt](), dict[str, ast.stmt]()
    for node in ast.parse(path.read_text("utf-8")).body:
        names = [alias.asname or alias.name for alias in getattr(node, "names", ())]
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            parts = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            names = [part.id for part in parts if isinstance(part.ctx, ast.Store)]
        defined |= dict.fromkeys([*names, getattr(node, "name", "")], node)
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) in DECLARING:
                declared[ast.literal_eval(mark.args[0])] = node
    found = {}
    for method, node in declared.items():
        used, ahead = list[ast.stmt](), [node]
        while ahead:
            if (one := ahead.pop()) not in used:
                used.append(one)
                names = [each.id for each in ast.walk(one) if isinstance(each, ast.Name)]
                ahead += [defined[name] for name in names if name in defined]
        spans = [part for one in used for part in (one, *getattr(one, "decorator_list", ()))]
        lines = {n for part in spans for n in range(part.lineno, 1 + (part.end_lineno or 0))}
        text = "\n".join(ast.unparse(one) for one in used if hasattr(one, "names"))
        found[method] = len(lines & code), {target for _, target in imports(module, text, False)}
    return found


def method_code() -> dict[str, int]:
    """Return method -> lines of code that it uses in its file and in helpers that only it has."""
    arrow = arrows()
    users = {one: {by for by in arrow if one in arrow[by]} for one in MODULES}
    room = SOURCE / "paradecode" / "methods"
    files, parts = (
        {name_of(path, SOURCE) for place in places for path in (room / place).glob("*.py")}
        for places in (METHOD_FOLDERS, PART_FOLDERS)
    )
    found = {}
    for module in sorted(files):
        own = {module}
        while more := {one for one in users if users[one] and users[one] <= own} - own - parts:
            own |= more
        for method, (lines, ahead) in methods_in(MODULES[module], module).items():
            used: set[str] = set()
            while ahead := (ahead & own) - used - {module}:
                used |= ahead
                ahead = {target for one in ahead for target in arrow[one]}
            found[method] = lines + sum(code_lines(MODULES[one]) for one in used)
    return found


def long_methods() -> dict[str, int]:
    """Return methods of more than ``METHOD_CODE`` lines that are not among ``LONGER_METHODS``."""
    return {
        method: count
        for method, count in method_code().items()
        if count > METHOD_CODE and method not in LONGER_METHODS
    }


def files_entered(decoder: str) -> list[str]:
    """Return the files that the busiest step in the middle of a tiny model's answer enters."""
    from paradecode import LLM

    here = str(SOURCE / "paradecode")
    steps: list[set[str]] = []

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(here):
            steps[-1].add(frame.f_code.co_filename)

    with LLM("paradecode/tiny-autoregressive", decoder=decoder) as llm:
        step = llm.engine.step

        def watched() -> list[Any]:
            steps.append(set())
            sys.setprofile(note)
            try:
                return step()
            finally:
                sys.setprofile(None)

        llm.engine.step = watched  # type: ignore[method-assign]
        # A stop text forces single steps; without it the backend makes several steps at once.
        llm.complete("sort: Ben Sam Art Tom Ben Art", max_tokens=64, ignore_eos=True, stop="\0")
    middle = steps[2:-2]  # Leaves out the steps of the prompt and the last ones.
    return sorted(str(Path(name).relative_to(here)) for name in max(middle, key=len))


def figures() -> dict[str, Any]:
    """Return all figures by name."""
    counted = lines()
    return {
        **{f"lines of code: {wing}": count for wing, count in wings().items()},
        **{f"  {room}": f"{count} of {BUDGETS[room]}" for room, count in code().items()},
        **{f"lines of Python in {folder}": count for folder, count in counted.items()},
        "lines of Python in all": sum(counted.values()),
        "circles": circles(),
        "upward arrows": upward(),
        "class names defined twice": shared_names(),
        f"methods over {METHOD_CODE} lines of code": long_methods(),
        "files entered by a plain step": files_entered("greedy"),
        "files entered by a step of prompt-lookup": files_entered("prompt-lookup"),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tools.structure", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for a program")
    parser.add_argument("--names", action="store_true", help="what is counted, too")
    parser.add_argument("--seconds", action="store_true", help="of build and tests, too")
    given = parser.parse_args()
    found = figures()
    if given.seconds:
        # This import needs the laboratory, which the other figures do without.
        from tools.seconds import seconds

        found |= seconds()
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name:45} {value if isinstance(value, (int, str)) else len(value)}")
        if given.names and not isinstance(value, (int, str)):
            for each in value.items() if isinstance(value, dict) else value:
                print(f"    {each}")


if __name__ == "__main__":
    main()
