"""Generated pages equal what the generators write from the committed results."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest

from paradecode.methods.parts import told
from paradecode.methods.specs import find
from paradecode.testing.conformance import FEWEST
from repository import ROOT
from tools.figures.conformance import RESTING
from tools.pages.attacks_page import main as write_attacks
from tools.pages.benchmarks import main as render
from tools.pages.core_page import main as write_core
from tools.pages.families_page import main as write_families
from tools.pages.first_use_page import main as write_first_uses
from tools.pages.method_page import markdown, method_page
from tools.pages.methods_page import committed, method_pages, overview
from tools.pages.perplexity_page import main as write_formats
from tools.pages.servers_page import main as write_servers
from tools.pages.sources import MARKS, completed, named
from tools.structure import ALLOWED

RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def test_method_pages() -> None:
    """Method pages have their title and settings, and the overview links to each of them."""
    pages, marks = method_pages(*committed()), overview(committed()[0])
    listed = (ROOT / "docs" / "methods.md").read_text("utf-8")
    assert all(f"<!-- {mark} -->" in listed for mark in marks)
    for name, text in pages.items():
        assert text.startswith(f"# `{name}`\n")
        assert f"methods/{name}.md" in marks["drafting"] + marks["unmasking"]
        assert "\n## Settings\n" in text


def test_a_page_needs_no_paragraph_of_when() -> None:
    method = replace(find("prompt-lookup"), when="")
    assert "## When" not in method_page(method, *committed())
    assert "## When" in method_page(find("prompt-lookup"), *committed())


def test_docstrings_are_taken_apart() -> None:
    docstring = """Do this (Author 2024).

    How it works,
    in ``code``.

    When: often, as :func:`~paradecode.core.noise.key` says.
    """
    found = told(docstring)
    assert found["summary"] == "Do this (Author 2024)."
    assert markdown(found["idea"]) == "How it works, in `code`."
    assert markdown(found["when"]) == "often, as `key` says."
    assert told(None) == {"summary": "", "idea": "", "when": ""}


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def emptied(page: str, mark: str) -> tuple[str, str]:
    """Return a page as it is committed, and without its generated part."""
    committed = (ROOT / page).read_text("utf-8")
    part = rf"(?s)(<!-- {mark}:begin -->).*(<!-- {mark}:end -->)"
    return committed, re.sub(part, r"\1\n\2", committed)


@pytest.mark.parametrize(("file", "baseline", "mark"), [
    ("headline_135m", "llama-cpp/q4_1", "headline-135m"),
    ("headline_1.5b", "llama-cpp/q4_k_m", "headline-1.5b"), ("peers", "llama-cpp/q4_1", "bench"),
])  # fmt: skip
def test_benchmarks_page(file, baseline, mark, tmp_path, monkeypatch):
    committed, empty = emptied("docs/benchmarks.md", mark)
    source = RESULTS / f"{file}.json"
    if not source.exists():
        assert empty == committed, f"a table without {source.name}"
        return
    copy = tmp_path / "benchmarks.md"
    copy.write_text(empty, "utf-8")
    assert empty != committed
    arguments = [str(source), "--baseline", baseline, "--into", str(copy), "--name", mark]
    monkeypatch.setattr(sys, "argv", ["tools.pages.benchmarks", *arguments])
    assert render() == 0
    assert copy.read_text("utf-8") == committed


@pytest.mark.parametrize(("page", "mark", "write", "sources"), [
    ("architecture", "perplexity", write_formats, ("perplexity_formats",)),
    ("serve", "first-use", write_first_uses, ("first_use",)),
    ("benchmarks", "core", write_core, ("core", "start")),
    ("serve", "attacks", write_attacks, ("serve_attacks",)),
    ("models", "families", write_families, ()),
    ("benchmarks", "servers", write_servers,
     ("server_paradecode", "server_llama_ngram", "server_llama_draft")),
])  # fmt: skip
def test_a_table_is_that_of_its_results(page, mark, write, sources, tmp_path):
    committed, empty = emptied(f"docs/{page}.md", mark)
    copy = tmp_path / "page.md"
    copy.write_text(empty, "utf-8")
    write(*(str(RESULTS / f"{name}.json") for name in sources), str(copy))
    assert copy.read_text("utf-8") == committed != empty


def test_no_attack_is_answered_wrongly() -> None:
    """The page shows which bounds an attack exceeded; a wrong answer may not be committed."""
    wrong = json.loads((RESULTS / "serve_attacks.json").read_text("utf-8"))["wrong"]
    assert not [line for line in wrong if "answered" in line]


def test_conformance_is_complete_where_it_is_committed() -> None:
    for file in RESULTS.glob("conformance*.json"):
        result = json.loads(file.read_text("utf-8"))
        assert len(result["prompts"]) == 60
        assert len({row["method"] for row in result["methods"]}) >= 5
        for row in result["methods"]:
            assert row["equal"] == row["outputs"] == 60, row["method"]
            if "accepted" in row and row["method"] not in RESTING:
                assert row["accepted"] >= FEWEST, row["method"]


def test_forward_table() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    table = page.split("| Paradecode ms |")[1].split("\n\n")[0]
    cases = json.loads((RESULTS / "forward.json").read_text("utf-8"))["cases"]
    measured = {
        f"{case['ours_ms']:.2f} | {case['llama_cpp_ms']:.2f} | {case['ratio']:.2f} |"
        for case in cases
    }
    shown = re.findall(r"[\d.]+ \| [\d.]+ \| [\d.]+ \|$", table, re.MULTILINE)
    assert len(shown) > 5
    assert set(shown) <= measured


def test_every_result_says_which_command_wrote_it() -> None:
    """Every result names the command that wrote it, and its script exists.

    Scripts of frozen experiments are in the commit that their page names.
    """
    pages = [ROOT / "bench" / "README.md", ROOT / "bench" / "frozen.md"]
    here, frozen = (page.read_text("utf-8") for page in pages)
    (commit,) = re.findall(r"git worktree add \S+ (\w+)", frozen)
    then = git("ls-tree", "-r", "--name-only", commit, "tools").stdout.split()
    for file in RESULTS.glob("*.json"):
        name = f"| `{file.name}` |"
        (row,) = [row for row in (here + frozen).splitlines() if row.startswith(name)]
        command = row.split("|")[2]
        for program in re.findall(r"python -m (tools[\w.]+)", command):
            script = (ROOT / program.replace(".", "/")).with_suffix(".py")
            if row in frozen:
                assert not script.exists(), f"{program} is in the tree: {pages[0]} is its page"
                assert not then or str(script.relative_to(ROOT)) in then, program
            else:
                assert script.exists(), program
        assert re.search(r"`(?:make bench|python|paradecode) ?", command), row


def test_pages_say_where_their_figures_come_from() -> None:
    """Pages name the source of every figure.

    After a change, run `python -m tools.pages.sources docs/*.md`, and add a comment for a new
    result.
    """
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text("utf-8")
        assert completed(text) == text, page.name
        missing = [file for file in named(text) if f"- `{file}`" not in text]
        assert not missing, f"{page.name}: write <!-- source: {' '.join(missing)} -->"


def test_results_are_marked_that_cannot_be_checked_or_paid_for_the_screen() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is not here")
    found: dict[str, list[str]] = {"lost": [], "unstamped": [], "changed": []}
    for file in sorted(RESULTS.glob("*.json")):
        made = json.loads(file.read_text("utf-8"))
        commit = made.get("commit", "") if isinstance(made, dict) else ""
        if not commit:
            found["unstamped"].append(file.name)
        elif git("merge-base", "--is-ancestor", commit.rstrip("+"), "HEAD").returncode:
            found["lost"].append(file.name)
        if commit.endswith("+"):
            found["changed"].append(file.name)
    marks = json.loads(MARKS.read_text("utf-8"))
    kinds = {kind: sorted(about["files"]) for kind, about in marks.items()}
    assert {kind: kinds[kind] for kind in found} == found


def test_the_architecture_shows_the_loop_as_it_is() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    loop = (ROOT / "src/paradecode/methods/draft/loop.py").read_text("utf-8")
    assert indent(shown, "    ") in loop, "copy DraftVerify.decode into architecture.md"


def test_the_architecture_has_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for room in ALLOWED.keys() - {"", "lab", "__main__", "backends.torch", "backends.native"}:
        path = room.replace(".", "/")
        assert f"`{path}/`" in page or f"`{path}.py`" in page, room


def test_every_module_that_pages_name_exists() -> None:
    """Every module that a page names exists at its path, or at the end of one.

    Two names are examples of files that readers write.
    """
    examples = {"methods/canvas/policies/leftmost.py", "methods/canvas/caches/near.py"}
    folders = ("src", "lab", "tests", "tools", "examples")
    known = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    for page in [*PAGES, *(ROOT / "docs").glob("*.md")]:
        for name in set(re.findall(r"`([\w./-]+\.py)`", page.read_text("utf-8"))) - examples:
            assert any(str(path).endswith(f"/{name}") for path in known), f"{page.name}: {name}"


def test_every_link_between_pages_leads_somewhere() -> None:
    """Every link between pages leads to a page and a heading, as GitHub follows links.

    The site has a test of its own.
    """
    docs = sorted((ROOT / "docs").rglob("*.md"))
    for source in [*PAGES, *docs]:
        text = source.read_text("utf-8")
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            target = source.parent / name if name else source
            assert target.exists(), f"{source.name} links to {name}"
            if anchor:
                assert anchor in anchors(target), f"{source.name} links to {name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"(?s)```.*?```", "", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
