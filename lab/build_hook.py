"""Takes this package's version from the engine, and requires exactly that engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent
VERSION = re.compile(r'__version__ = "(.+)"')


class EngineVersion(MetadataHookInterface):
    """Reads the version beside the engine, or from the metadata of a source distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the version and what is required."""
        engine = HERE.parent / "src" / "paradecode" / "__init__.py"
        packed = HERE / "PKG-INFO"  # A source distribution has no engine beside it.
        if engine.exists():
            found = VERSION.search(engine.read_text("utf-8"))
        else:
            found = re.search(r"^Version: (.+)$", packed.read_text("utf-8"), re.MULTILINE)
        assert found is not None
        metadata["version"] = found[1]
        metadata["dependencies"] = [f"paradecode=={found[1]}", "paradecode-data>=1,<2"]
