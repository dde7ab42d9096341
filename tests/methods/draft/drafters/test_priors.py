"""Priors of the default model are used for other models, and a file may replace them."""

from pathlib import Path

import pytest

from drafting import Request, draft
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.copyspec import CopySpec
from paradecode.methods.draft.model_free import DEFAULT, load_priors, priors_of, save_priors

TEXT = [1, 2, 3, 4, 5, 1, 2, 3]


def test_unknown_models_start_from_the_default_models_priors() -> None:
    for name in ("", "nobody/knows-it", "../" + DEFAULT):
        assert priors_of(name) is priors_of(DEFAULT)


def test_a_file_replaces_them(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    save_priors(path, "own", {group: [0.5] * len(p) for group, p in priors_of(DEFAULT).items()})
    assert set(draft(CopySpec(priors=str(path)), Request(TEXT), 2).estimates.tolist()) == {0.5}
    assert set(draft(CopySpec(), Request(TEXT), 2).estimates.tolist()) != {0.5}


@pytest.mark.parametrize("text", [
    "", "[]", "[" * 200_000, '{"priors": 3}', '{"priors": {"copying": [0.5]}}',
    '{"priors": {"a": ["b"]}}', f'{{"priors": {{"a": [{10**400}]}}}}',
])  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="priors"):
        load_priors(str(path))
    with pytest.raises(InvalidInput, match="priors"):
        load_priors(str(tmp_path / "none.json"))


def test_chances_beyond_1_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    save_priors(path, "own", {group: [1.5] * len(p) for group, p in priors_of(DEFAULT).items()})
    with pytest.raises(InvalidInput, match="0 to 1"):
        load_priors(str(path))
