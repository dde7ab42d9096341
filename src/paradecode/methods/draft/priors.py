"""Priors of drafters: how often draft tokens were right on a model, by kind of evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from paradecode.core.checks import json_object
from paradecode.core.errors import InvalidInput
from paradecode.methods.read_once import read_once

FIELD = "priors"
TABLES = Path(__file__).parent / "tables"
"""Folder of the files that come with the package, each under the name of its model."""
DEFAULT = "smollm2-135m-instruct"
"""The model whose priors are used for models that were not measured."""

Priors = Mapping[str, tuple[float, ...]]
"""Group of drafters (``copying``, ``stand``) -> for each of its kinds of evidence, the chance that
a token is right."""


def priors_of(model: str) -> Priors:
    """The priors measured on the model of this name, or else on the default model."""
    own = TABLES / f"{model}.priors.json"
    known = own.parent == TABLES and own.is_file()
    return load_priors(str(own if known else TABLES / f"{DEFAULT}.priors.json"))


@read_once(FIELD)
def load_priors(path: str) -> Priors:
    """The priors of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or of another version.
    """
    read = json_object(Path(path), FIELD)
    try:
        found = {str(name): tuple(map(float, each)) for name, each in read["priors"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidInput(FIELD, path, f"it holds no priors: make it again ({error})") from None
    if Path(path).parent != TABLES:
        known = {name: len(chances) for name, chances in priors_of(DEFAULT).items()}
        if {name: len(chances) for name, chances in found.items()} != known:
            raise InvalidInput(FIELD, path, "this version has other kinds: make it again")
    if not all(0.0 <= chance <= 1.0 for chances in found.values() for chance in chances):
        raise InvalidInput(FIELD, path, "its chances must be from 0 to 1: make it again")
    return found


def save_priors(
    path: str | PathLike[str], model: str, priors: Mapping[str, Sequence[float]]
) -> None:
    """Write the file that :func:`load_priors` reads."""
    groups = {name: [round(chance, 4) for chance in priors[name]] for name in sorted(priors)}
    lines = [f"  {json.dumps(name)}: {json.dumps(chances)}" for name, chances in groups.items()]
    inside = ",\n".join(lines)
    text = f'{{\n "model": {json.dumps(model)},\n "priors": {{\n{inside}\n }}\n}}\n'
    Path(path).write_text(text, "utf-8")
