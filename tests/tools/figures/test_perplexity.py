"""Windows of a text, and their losses in forwards of fewer rows."""

from dataclasses import replace

import numpy as np
import pytest

from paradecode.backends import open_backend
from paradecode.models.catalogue import open_model
from tools.figures import perplexity

MODEL = open_model()


@pytest.mark.parametrize(
    ("begins", "windows"),
    [(False, [[1, 2, 3], [4, 5, 6]]), (True, [[9, 1, 2], [9, 3, 4], [9, 5, 6], [9, 7, 8]])],
)
def test_windows_begin_with_bos_if_prompts_do(begins: bool, windows: list[list[int]]) -> None:
    config = replace(MODEL.config, bos_token=9, add_bos=begins)
    checkpoint = replace(MODEL, config=config)
    assert perplexity.windows_of(checkpoint, [*range(1, 9)], 3) == windows


@pytest.mark.parametrize("rows", [8, 7])
def test_a_window_is_scored_in_several_forwards(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = MODEL.tokenizer.encode("The answer to the question is forty-two, said he to her.")
    backend = open_backend("native", MODEL.config, MODEL.weights, dtype="q8")
    once = perplexity.nll(backend, [tokens, tokens[::-1]])
    monkeypatch.setattr(perplexity, "WINDOW", rows)
    parts = perplexity.nll(backend, [tokens, tokens[::-1]])
    backend.close()
    assert len(once) == 2 * (len(tokens) - 1) > 16
    np.testing.assert_allclose(parts, once, atol=1e-4)
