"""Tiny random models whose layers keep a state, and engines that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paradecode.backends.native.backend import NativeBackend
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Attention, Feed, Layer
from paradecode.models.recurrence import Convolution, Recurrence
from paradecode.models.rope import Rope
from paradecode.models.weights import Tensor, Weights

FEED = Feed(48)
ATTENTION = Attention(4, 2, 16, rope=Rope(dim=16))
MAMBA2 = Recurrence(
    4, 2, 8, 16, width=4, tap_bias=True, skip=True, gate="before", out_norm="groups", norm_groups=2
)
GATED_DELTA = Recurrence(
    4, 2, 8, 16, rule="delta", strength="sigmoid", width=4, unit=True, scale=8**-0.5, gate="after",
    out_norm="head",
)  # fmt: skip
GLA = Recurrence(
    4, 2, 8, 16, decay="logsigmoid", channels=True, decay_rank=5, decay_divisor=16.0,
    strength="one", scale=8**-0.5, gate="after", out_norm="head",
)  # fmt: skip
KINDS = {
    "convolution": (Layer((Convolution(3), FEED)), Layer((ATTENTION, FEED))),
    "mamba-2": (Layer((MAMBA2,)), Layer((MAMBA2,))),
    "gated delta": (Layer((GATED_DELTA, FEED)), Layer((ATTENTION, FEED))),
    "gated linear attention": (Layer((GLA, FEED)), Layer((GLA, FEED))),
    "hybrid": (Layer(((ATTENTION, MAMBA2), FEED)),
               Layer((GATED_DELTA, FEED)), Layer((Convolution(3), FEED))),
}  # fmt: skip


def state_model(kind: str, seed: int = 0) -> tuple[ModelConfig, Weights]:
    """Return a random model of a kind, of 40 tokens and 512 positions."""
    config = ModelConfig(f"tiny-{kind}", kind, 40, 32, KINDS[kind], 512)
    random = np.random.default_rng(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in config.tensors().items():
        noise = random.standard_normal(shape).astype(np.float32)
        if name.endswith(("norm", "gain")):
            noise = 1 + 0.1 * noise
        elif name.endswith("decay"):
            noise = -np.exp(0.5 * noise)
        elif name.endswith("taps"):
            noise *= 0.5
        elif len(shape) == 2:
            noise *= (4 if name in ("embed", "head") else 1.5) / np.sqrt(shape[1])
        weights[name] = Tensor(np.asarray(noise, np.float32), shape)
    return config, weights


def state_engine(kind: str, torch: bool = False, **limits: Any) -> Engine:
    """Return an engine with a model, whose tokens do not depend on the batch.

    Args:
        torch: whether PyTorch runs it, in float64, or the native core.
    """
    if torch:
        from paradecode.backends.torch.backend import TorchBackend

        return _engine(TorchBackend(*state_model(kind), dtype="fp64", threads=1), limits)
    return _engine(NativeBackend(*state_model(kind), dtype="f32", threads=2), limits)


def _engine(backend: Any, limits: dict[str, Any]) -> Engine:
    return Engine({"target": backend}, Limits(**{"kv_tokens": 4096, "batch": 8, **limits}))


def ask(engine: Engine, spec: str, prompt: Sequence[int], **params: Any) -> LiveSequence:
    """Queue a request."""
    sampling = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **params})
    return engine.add(GenerationRequest(np.array(prompt, np.int32), parse(spec), sampling))


def outputs(engine: Engine, spec: str, prompts: Sequence[Sequence[int]], **params: Any) -> Any:
    """Return each prompt's output with its log-probabilities.

    Pages, records and states are checked at every step.
    """
    params = {"logprobs": 0, "seed": 7, **params}
    asked = [ask(engine, spec, prompt, **params) for prompt in prompts]
    while engine.busy:
        engine.step()
        engine.check()
    for sequence in asked:
        if sequence.error is not None:
            raise sequence.error
    return [told(sequence) for sequence in asked]


def told(sequence: LiveSequence) -> tuple[list[int], Any]:
    """Return an output and its log-probabilities, whose bits are those of the logits."""
    return sequence.tokens[sequence.prompt_length :].tolist(), sequence.logprobs
