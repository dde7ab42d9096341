"""Download models of the hub by name; no other file downloads weights from there."""

from __future__ import annotations

import re
from pathlib import Path

from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_file import first_part

_TEXTS = ["*.json", "*.jinja", "merges.txt", "tokenizer.model"]


def download(name: str) -> Path:
    """Return the folder of a hub model, or its GGUF file, from the hub's cache or the network.

    Safetensors are preferred to a GGUF file. Pickles and code are never downloaded. HF_HUB_OFFLINE,
    HF_HOME, HF_TOKEN and HF_ENDPOINT work as usual.

    Args:
        name: ``org/name``, or ``org/name:part`` for the GGUF file whose name contains ``part``.

    Raises:
        InvalidModel: the hub's package, the network or the model is missing, or the choice between
            several GGUF files is open.
    """
    try:
        import huggingface_hub
    except ImportError:
        fix = "the hub needs a package: pip install -e '.[hub]' in the checkout"
        raise InvalidModel("model", name, fix) from None
    repository, _, part = name.partition(":")
    try:
        if not part:
            folder = Path(
                huggingface_hub.snapshot_download(
                    repository, allow_patterns=["*.safetensors", *_TEXTS]
                )
            )
            if any(folder.glob("*.safetensors")):
                return folder
            files = [str(f) for f in huggingface_hub.list_repo_files(repository)]
            found = [f for f in files if f.endswith(".gguf")]
            if len({first_part(Path(f)) for f in found}) != 1:
                fix = f"choose one of {', '.join(found)[:400]}, as {repository}:PART_OF_THE_NAME"
                raise InvalidModel("model", name, fix if found else "it has no usable weights")
            part = re.sub(r"-\d{5}-of-\d{5}$", "", found[0].removesuffix(".gguf"))
        pattern = f"*{part}*.gguf"
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=[pattern]))
        matching = sorted(folder.rglob(pattern))
        if len({first_part(file) for file in matching}) == 1:
            return matching[0]
    except InvalidModel:
        raise
    except Exception as error:  # The library raises many kinds of errors.
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise InvalidModel(
            "model", name, f"the hub did not give it (check name and network): {reason}"
        ) from None
    fix = f"{len(matching)} GGUF files have {part!r} in their names; name exactly one"
    raise InvalidModel("model", name, fix)
