"""Finds docstrings with a bad first word and hard sentences of pages, and draws docstrings to read.

    python -m tools.words                         # complaints, which `make lint` shows
    python -m tools.words docs/serve.md           # complaints about these pages alone
    python -m tools.words --sample 40 --seed 1    # docstrings drawn by a seed, with their places

Modules, classes and functions have docstrings. A string below an assignment is one as well: it
describes the constant or the attribute.

A page is the README, CONTRIBUTING or one in ``docs``. Code, tables and generated parts between
marks are not read.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "lab", "tools", "examples", "tests")
REFUSED = ("Of", "As", "So", "Those", "That", "Most", "Whether", "What", "How")
"""First words after which a reader has to guess what the docstring is about."""
MOST_WORDS = 40
"""The most words of a sentence. Longer sentences have to be read twice."""
MOST_FIGURES = 4
"""The most figures of a sentence. More of them belong into a table."""
BESIDE = re.compile(
    r"(?ms)^<!-- \S+:begin -->.*?:end -->$|^```.*?^```$|^(?:    |\||<|#|!\[|- `[\w.]+\.json`:).*?$"
)
"""Matches what is not read: code, headings, pictures, tables, sources and generated parts."""
END = re.compile(r"(?<=[.!?:])[)*\"]*\s+(?=[A-Z`*\"(\[\d])|\n\s*\n|\n\s*(?:- |\d+\. )")
"""Matches where a sentence ends: after its stop, or with its paragraph or list entry."""
FIGURE = re.compile(r"(?<![\w.#-])\d[\d.,:]*(?![\w-])|(?<![\w.#-])\d{4}-\d\d-\d\d")


def docstrings(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the text of every docstring of a file, without indentation.

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
    """Return the line and the beginning of each docstring whose first word is in ``REFUSED``."""
    return [
        f"{line}: {text.splitlines()[0]}"
        for line, _, text in docstrings(source)
        if text.split(maxsplit=1)[0] in REFUSED
    ]


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page.

    A span of code counts as a word, and so does a paper's number.
    """
    text = BESIDE.sub("\n\n", page)
    text = re.sub(r"!?\[(?:arXiv:)?[\d.v]+\]\(\S+?\)|arXiv:[\d.]+|`+[^`]+`+", "Code", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    for sentence in END.split(text):
        yield " ".join(sentence.split())


def hard(page: str) -> list[str]:
    """Return the sentences of a page with too many words or figures, and their numbers of both."""
    found = []
    for sentence in sentences(page):
        words, figures = len(sentence.split()), len(FIGURE.findall(sentence))
        if words > MOST_WORDS or figures > MOST_FIGURES:
            found.append(f"{words} words, {figures} figures: {sentence}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many docstrings to print")
    parser.add_argument(
        "--seed", type=int, default=1, help="which docstrings are drawn (default 1)"
    )
    parser.add_argument("pages", type=Path, nargs="*", help="pages to look at instead of all")
    arguments = parser.parse_args()
    own = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages = [
        f"{path}: {found}"
        for path in arguments.pages or own
        for found in hard(path.read_text(encoding="utf-8"))
    ]
    if arguments.pages:
        sys.exit("\n".join(pages) or None)
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
    elif pages:
        most = f"{MOST_WORDS} words and {MOST_FIGURES} figures"
        sys.exit("\n".join([*pages, f"A sentence of a page has at most {most}."]))


if __name__ == "__main__":
    main()
