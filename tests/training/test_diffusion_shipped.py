"""The models of the package ``paradecode-data`` must open by name and answer."""

import json

import pytest

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.models import catalogue
from paradecode.models.catalogue import find, list_models, open_model, pull
from paradecode_lab.measure.tasks.tasks import BY_NAME, GRADED

SETS = ("tiny", "graded")
HYBRID = "paradecode/graded-hybrid"
NAMES = (
    *(f"paradecode/{s}-{kind}" for s in SETS for kind in ("diffusion", "autoregressive")), HYBRID,
)  # fmt: skip
MOST_BYTES = {"tiny": 12_000_000, "graded": 19_000_000}
"""Set -> the most bytes of its models together."""
RIGHT = 18
"""The fewest of 24 answers of the hybrid that are right."""

PRESENT = {listed.name for listed in list_models() if listed.present}
pytestmark = pytest.mark.skipif(
    not set(NAMES) <= PRESENT, reason="the models are not trained yet: docs/training.md"
)


def test_they_are_listed_and_small():
    sizes = {listed.name: listed.size for listed in list_models() if listed.name in NAMES}
    assert sizes.keys() == set(NAMES)
    for named in SETS:
        own = [size for name, size in sizes.items() if named in name]
        assert 0 < sum(own) < MOST_BYTES[named]


@pytest.mark.parametrize("name", NAMES)
def test_they_open_by_name(name):
    checkpoint = open_model(name)
    assert checkpoint.config.name == name
    diffusion = name.endswith("diffusion")
    assert (checkpoint.config.mask_token is not None) == diffusion
    assert checkpoint.config.attention == ("full" if diffusion else "causal")
    assert checkpoint.config.shift == (name == "paradecode/graded-diffusion")
    assert checkpoint.config.keeps_states == (name == HYBRID)
    assert checkpoint.chat_template is not None
    assert find(name.partition("/")[2]) == find(name)
    assert pull(name) == find(name).path


def test_all_have_the_tokenizer_that_training_makes():
    from paradecode_lab.training.diffusion.vocabulary import build_tokenizer

    made = json.loads(build_tokenizer().to_str())
    for name in NAMES:
        path = find(name).path / "tokenizer.json"
        assert json.loads(path.read_text("utf-8")) == made


def test_the_hybrid_answers_graded_tasks_and_drafts_change_nothing():
    """Trees of drafts are accepted and rejected on its layers with states."""
    instances = [one for task in GRADED for one in task.held_out(3)]
    sampling = SamplingParams(max_tokens=64)
    with LLM(HYBRID, threads=1) as llm:
        asked = [llm.chat_tokens([{"role": "user", "content": one.prompt}]) for one in instances]
        plain = llm.complete(asked, sampling, decoder="greedy")
        drafted = llm.complete(asked, sampling, decoder="token-recycling(budget=fixed)")
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    accepted = sum(one.stats.accepted for one in drafted)
    assert 0 < accepted < sum(one.stats.drafted for one in drafted)
    right = sum(BY_NAME[i.task].check(i, one.text) for i, one in zip(instances, plain, strict=True))
    assert right >= RIGHT


def test_an_installation_without_them_names_the_package(monkeypatch):
    monkeypatch.setattr(catalogue, "DATA", "no_such_package")
    assert not any(listed.present for listed in list_models() if listed.name in NAMES)
    for act in (open_model, pull):
        with pytest.raises(catalogue.InvalidModel, match=rf"{NAMES[0]}.*paradecode\[data\]"):
            act(NAMES[0])
