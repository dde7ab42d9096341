"""The tables of the page about choosing a method equal those of the committed results."""

from pathlib import Path

import pytest

from repository import ROOT
from tools.pages.which_page import PARTS, main
from tools.words import hard


@pytest.mark.wide
def test_the_tables_of_the_choice(tmp_path: Path) -> None:
    """The tables in the page equal the generated ones.

    After a change, run `python -m tools.pages.which_page docs/methods.md`.
    """
    committed = (ROOT / "docs" / "methods.md").read_text("utf-8")
    copy = tmp_path / "page.md"
    copy.write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in PARTS))
    main(str(copy))
    for part in copy.read_text("utf-8").split("<!-- ")[1::2]:
        assert part in committed


def test_hard_sentences_are_found() -> None:
    long = " ".join(["word"] * 41)
    for text in (f"Short. {long}.", "It has 1, 2, 3, 4 and 5.5 parts."):
        assert len(hard(text)) == 1
    link = "[2404.16710](https://arxiv.org/abs/2404.16710)"
    rest = f"```\n{long}\n```\n\n    {long}\n\n| {long} |\n\n# {long}\n"
    rest += f"\n<!-- x:begin -->\n{long}\n<!-- x:end -->\n"
    for text in (f"- {long[:150]}\n- {long[:150]}\n", f"In 1 to 4 {link} `{long}`, {link}.", rest):
        assert not hard(text)
