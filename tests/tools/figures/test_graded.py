"""The block model that the figure of graded tasks measures is the one that ships, in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paradecode.methods.specs import parse
from paradecode.models.catalogue import open_model
from tools.figures.graded import BLOCK, CANVAS, IN_BLOCKS, WHOLE, block_model


def test_the_block_model_has_the_weights_of_the_canvas_model(tmp_path: Path) -> None:
    whole, blocks = open_model(CANVAS), open_model(block_model(tmp_path / "blocks" / "model"))
    assert (whole.config.attention, blocks.config.attention) == ("full", "block")
    assert blocks.config.block_length == BLOCK
    assert blocks.config.shift
    assert whole.config.shift
    for name, tensor in whole.weights.items():
        assert np.array_equal(tensor.float32(), blocks.weights[name].float32())
    assert {parse(way).method.family for way in (*WHOLE, *IN_BLOCKS)} == {"diffusion"}
