"""The path of the repository, for tests that read its documents, scripts and results."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
