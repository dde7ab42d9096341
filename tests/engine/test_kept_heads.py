"""The most recently requested draft heads stay loaded."""

import pytest

from paradecode.engine import resources
from paradecode.engine.engine import Engine
from paradecode.testing.draft_heads import random_head
from paradecode.testing.toy import ToyBackend, toy_config


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_heads_stay_open_than_are_kept(most, tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "MOST_HEADS", most)
    backend = ToyBackend(toy_config())
    engine = Engine({"target": backend}, weights={})
    paths = [random_head("medusa-own", backend.config, tmp_path / str(i), i) for i in range(4)]
    opened = [engine.head(path, 0, "q8") for path in paths]
    kept = paths[-most:]
    assert [path for path, *_ in engine._heads] == kept
    for path, head in zip(paths, opened, strict=True):
        if path in kept:
            assert engine.head(path, 0, "q8") is head
    assert engine.head(paths[0], 0, "q8") is not opened[0]
