"""Words that no docstring may begin with, and a random sample of docstrings to read.

    python -m tools.words                         # complaints, which `make lint` shows
    python -m tools.words --sample 40 --seed 1    # docstrings drawn by a seed, with their places

Modules, classes and functions have docstrings. A string below an assignment is one as well: it
describes the constant or the attribute.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "lab", "tools", "examples", "tests")
REFUSED = ("Of", "As", "So", "Those", "That", "Most")
"""First words after which a reader has to guess what the docstring speaks of."""


def docstrings(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of every docstring of a file, without indentation.

    The name is the class's, the function's or the variable's; a module has the name "".
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, getattr(node, "name", ""), text
        for assigned, below in zip(node.body, node.body[1:], strict=False):
            match assigned, below:
                case (
                    ast.Assign(targets=[target]) | ast.AnnAssign(target=target),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield below.lineno, ast.unparse(target), inspect.cleandoc(text)


def complaints(source: str) -> list[str]:
    """Line and beginning of each docstring whose first word is one of ``REFUSED``."""
    return [
        f"{line}: {text.splitlines()[0]}"
        for line, _, text in docstrings(source)
        if text.split(maxsplit=1)[0] in REFUSED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many docstrings to print")
    parser.add_argument(
        "--seed", type=int, default=1, help="which docstrings are drawn (default 1)"
    )
    arguments = parser.parse_args()
    files = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    if arguments.sample:
        found = [(file, *entry) for file, source in files.items() for entry in docstrings(source)]
        for file, line, name, text in random.Random(arguments.seed).sample(found, arguments.sample):
            print(f"{file}:{line} {name}\n    " + text.replace("\n", "\n    ") + "\n")
    elif wrong := [
        f"{file}:{text}" for file, source in files.items() for text in complaints(source)
    ]:
        words = ", ".join(REFUSED)
        sys.exit(
            "\n".join([*wrong, f"A docstring begins with its subject or a verb, not with {words}."])
        )


if __name__ == "__main__":
    main()
