"""Adds generated pages while mkdocs builds the site. mkdocs loads this file by its path."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.pages.methods_page import committed, method_pages, overview


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each method."""
    for name, text in method_pages(*committed()).items():
        files.append(File.generated(config, f"methods/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the page that lists the methods."""
    if page.file.src_uri == "methods.md":
        for mark, text in overview(committed()[0]).items():
            markdown = markdown.replace(f"<!-- {mark} -->", text)
    return markdown
