"""The models of the package ``paradecode-data`` must open by name and answer."""

import json

import pytest

from paradecode.models import catalogue
from paradecode.models.catalogue import find, list_models, open_model, pull

SETS = ("tiny", "graded")
NAMES = tuple(f"paradecode/{s}-{kind}" for s in SETS for kind in ("diffusion", "autoregressive"))
MOST_BYTES = 12_000_000
"""The most bytes of the two models of a set together."""

PRESENT = {listed.name for listed in list_models() if listed.present}
pytestmark = pytest.mark.skipif(
    not set(NAMES) <= PRESENT, reason="the models are not trained yet: docs/training.md"
)


def test_they_are_listed_and_small():
    sizes = {listed.name: listed.size for listed in list_models() if listed.name in NAMES}
    assert sizes.keys() == set(NAMES)
    for named in SETS:
        own = [size for name, size in sizes.items() if named in name]
        assert 0 < sum(own) < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_they_open_by_name(name):
    checkpoint = open_model(name)
    assert checkpoint.config.name == name
    diffusion = name.endswith("diffusion")
    assert (checkpoint.config.mask_token is not None) == diffusion
    assert checkpoint.config.attention == ("full" if diffusion else "causal")
    assert checkpoint.config.shift == (name == "paradecode/graded-diffusion")
    assert checkpoint.chat_template is not None
    assert find(name.partition("/")[2]) == find(name)
    assert pull(name) == find(name).path


def test_both_have_the_tokenizer_that_training_makes():
    from paradecode_lab.training.diffusion.vocabulary import build_tokenizer

    made = json.loads(build_tokenizer().to_str())
    for name in NAMES:
        path = find(name).path / "tokenizer.json"
        assert json.loads(path.read_text("utf-8")) == made


def test_an_installation_without_them_names_the_package(monkeypatch):
    monkeypatch.setattr(catalogue, "DATA", "no_such_package")
    assert not any(listed.present for listed in list_models() if listed.name in NAMES)
    for act in (open_model, pull):
        with pytest.raises(catalogue.InvalidModel, match=rf"{NAMES[0]}.*paradecode\[data\]"):
            act(NAMES[0])
