"""Find the models in a folder, for ``--models-dir``."""

from __future__ import annotations

import os
from pathlib import Path

from paradecode.core.errors import InvalidInput, reason
from paradecode.models.gguf_file import first_part

MOST = 1000
"""The most models that a server may have."""


def models_in(folder: Path) -> dict[str, str]:
    """Return name -> path of each model that lies directly in a folder.

    A model is a ``.gguf`` file, named without its ending, or a folder that holds a ``config.json``
    or GGUF files. Of a model in several files, the first one counts. Files for images (``mmproj``)
    and hidden files do not.

    Raises:
        InvalidInput: the folder cannot be read, holds no model, or two of its models have one name.
    """
    try:
        entries = sorted(folder.expanduser().iterdir())
    except OSError as error:
        fix = f"give a folder with models ({reason(error)})"
        raise InvalidInput("models_dir", str(folder), fix) from None
    found: dict[str, str] = {}
    for entry in entries:
        if entry.name.startswith((".", "mmproj")):
            continue
        if entry.is_dir():
            if not ((entry / "config.json").is_file() or any(entry.glob("*.gguf"))):
                continue
            name = entry.name
        elif entry.suffix == ".gguf" and entry == first_part(entry):
            name = entry.stem.partition("-00001-of-")[0]
        else:
            continue
        if name in found:
            fix = f"there is {os.path.basename(found[name])} as well; rename one of them"
            raise InvalidInput("models_dir", entry.name, fix)
        found[name] = str(entry)
    if not 0 < len(found) <= MOST:
        fix = f"it holds {len(found)} models; put 1 to {MOST} .gguf files or folders into it"
        raise InvalidInput("models_dir", str(folder), fix)
    return found
