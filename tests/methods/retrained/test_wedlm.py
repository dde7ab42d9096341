"""WeDLM fills, writes and caches the same as a plain decoder without a cache."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import MASK, TEXTS

import engines
from paradecode.backends.interface import Backend, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.torch.backend import TorchBackend
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.noise import key, mix
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.models.config import ModelConfig
from paradecode.models.tiny import tiny_checkpoint
from paradecode.models.weights import Weights
from paradecode.testing.cases import records
from paradecode.testing.conformance import cases
from paradecode.testing.machines import CONTEXT
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

EOS = 3
PARAMS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 24, "ignore_eos": True}, {"max_tokens": 30},
    {"max_tokens": 17, "temperature": 0.9, "seed": 5, "ignore_eos": True},
    {"max_tokens": 40, "temperature": 1.2, "top_k": 9, "top_p": 0.8, "seed": 6},
)  # fmt: skip
SETTINGS = ((16, 0.4, 0.02), (16, 0.9, 0.02), (5, 2.0, 0.3), (4, 0.0, 0.02), (1, 9.0, 0.0))


def toy(surprise: int = 500, **facts: Any) -> ToyBackend:
    return ToyBackend(toy_config(29, CONTEXT, **{"masked": True, **facts}), surprise=surprise)


def served(backend: Backend, *jobs: tuple[str, Any, Any], **more: Any) -> list[LiveSequence]:
    """Serve the requests (method, prompt, parameters) at the same time in one engine."""
    engine = Engine({TARGET: backend}, Limits(kv_tokens=8192), LetterText)
    return engines.served(engine, jobs, **more)


def fills_of(sequence: LiveSequence) -> list[dict[int, int]]:
    steps = [step.canvas for step in sequence.trace]
    return [dict(zip(step.offsets, step.tokens, strict=True)) for step in steps]


def one_forward(model: ToyBackend, tokens: list[int], places: list[int]) -> np.ndarray:
    """Return float64 logits [rows, V] of a causal forward over the whole text.

    ``places`` are the rows' positions, in any order.
    """
    rows = np.arange(len(tokens), dtype=np.int32)
    span = Span(
        pages=np.empty(0, np.int32), tokens=np.array(tokens, np.int32),
        positions=np.array(places, np.int32), slots=np.full(len(tokens), -1, np.int32),
        context=0, logits=rows,
    )  # fmt: skip
    return np.array(model.forward([span])[0].logits.values, np.float64)


def by_the_book(model, prompt, given, size, entropy, distance):
    """Return the tokens that the paper's decoder emits, and the fills of each forward.

    A fill maps an offset to a token id. The last forward fills nothing. Masks after ``max_tokens``
    are not fed, and a mask is never chosen; otherwise the steps are those of the paper's code.
    """
    params = SamplingParams(**given)
    text, output, fills = list(prompt), [], []
    window: list[int | None] = [None] * min(size, params.max_tokens)
    while True:
        count = 0
        while count < len(window) and window[count] is not None:
            count += 1
        left = params.max_tokens - len(output) - len(window)
        window += [None] * min(count, left)
        known = [at for at, token in enumerate(window) if token is not None]
        masks = [at for at, token in enumerate(window) if token is None]
        order = known + masks
        rows = [window[at] if window[at] is not None else MASK for at in order]
        places = [*range(len(text)), *(len(text) + at for at in order)]
        logits = one_forward(model, [*text, *rows], places)[len(text) + len(known) :]
        for token in window[:count]:
            output.append(token)
            text.append(token)
            if (token == EOS and not params.ignore_eos) or len(output) == params.max_tokens:
                return output, fills
        window, masks = window[count:], [at - count for at in masks]
        logits[:, MASK] = -np.inf
        doubt = []
        for at, row in zip(masks, logits, strict=True):
            p = np.exp(row - row.max())
            p = p[p > 0] / p.sum()
            doubt.append(float(-(p * np.log(p)).sum()) + distance * (at - masks[0]))
        chosen = [i for i, one in enumerate(doubt) if one < entropy] or [int(np.argmin(doubt))]
        filled = {}
        for i in chosen:
            noise = [key(mix(params.seed or 0), len(text) + masks[i])]
            token = int(ArrayLogits(logits[i : i + 1]).sample(params.warp, noise)[0])
            window[masks[i]] = filled[len(output) + masks[i]] = token
        fills.append(filled)


@pytest.mark.first(3)
@pytest.mark.parametrize(("size", "entropy", "distance"), SETTINGS)
def test_forward_by_forward_it_is_the_published_decoder(size, entropy, distance) -> None:
    spec = f"wedlm(window={size},entropy={entropy},distance={distance})"
    jobs = [(spec, text, params) for text in TEXTS for params in PARAMS]
    wanted = [by_the_book(toy(), text, params, size, entropy, distance) for _, text, params in jobs]
    together = served(toy(), *jobs)
    for made, (output, fills) in zip(together, wanted, strict=True):
        assert made.output == output
        assert fills_of(made) == fills
        assert made.forwards == len(fills)
        if made.finish_reason == "length":  # Otherwise, masks after the end may be filled.
            assert len(fills) <= len(output)
    several = [len(fill) > 1 for _, fills in wanted for fill in fills]
    assert any(several) == (size > 1 and entropy > 0)
    if entropy == 0.9:  # Some masks are filled before masks to their left.
        assert any(
            min(fill) > min(set(range(40)) - {at for one in fills[:step] for at in one})
            for _, fills in wanted
            for step, fill in enumerate(fills)
        )


def test_other_windows_and_the_order_matter() -> None:
    """Each setting gives another text, so a comparison with the plain decoder can fail."""
    texts = {tuple(by_the_book(toy(), TEXTS[0], PARAMS[0], *s)[0]) for s in SETTINGS}
    assert len(texts) >= 4


def stored(backend: Any, rows: np.ndarray) -> list[np.ndarray]:
    """Return what the cache holds in these physical rows, layer by layer."""
    if isinstance(backend, ToyBackend):
        return [layer[rows] for layer in backend.values]
    return [layer[rows].numpy() for kind in (backend.keys, backend.values) for layer in kind]


def physical(sequence: LiveSequence) -> np.ndarray:
    cache = sequence.caches[TARGET]
    slots = np.arange(cache.length)
    return np.array(cache.pages)[slots // 16] * 16 + slots % 16


def masked() -> tuple[ModelConfig, Weights]:
    config, weights = tiny_checkpoint("qwen3")
    return replace(config, mask_token=config.vocab_size - 1), weights


def fp64() -> TorchBackend:
    return TorchBackend(*masked(), dtype="fp64", threads=1)


@pytest.mark.parametrize("make", [toy, fp64])
def test_stored_keys_and_values_are_those_of_a_causal_prefill(make) -> None:
    backend = make()
    engine = Engine({TARGET: backend}, Limits(kv_tokens=2048), LetterText)
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=2)
    prompt = np.array(TEXTS[0], np.int32)
    made = engine.add(GenerationRequest(prompt, parse("wedlm(entropy=3.2)"), params))
    seen = 0
    while engine.busy:
        engine.step()
        if made.finished or made.caches[TARGET].length in (0, seen):
            continue
        seen = made.caches[TARGET].length
        fresh = make()
        other = Engine({TARGET: fresh}, Limits(kv_tokens=2048), LetterText)
        twin = other.add(GenerationRequest(made.tokens.copy(), parse("greedy"), params))
        other.step()
        theirs = stored(fresh, physical(twin)[:seen])
        for ours, one in zip(stored(backend, physical(made)), theirs, strict=True):
            np.testing.assert_allclose(ours.astype(float), one.astype(float), rtol=1e-9, atol=1e-12)
    assert seen > len(prompt) + 12


def test_later_requests_share_its_text() -> None:
    backend = toy()
    params = {"max_tokens": 40, "ignore_eos": True}
    engine = Engine({TARGET: backend}, Limits(kv_tokens=4096), LetterText)

    def ask(spec: str, prompt: list[int], within: Engine = engine) -> LiveSequence:
        return engines.served(within, [(spec, prompt, params)])[0]

    first = ask("wedlm(entropy=0.9)", list(TEXTS[0]))
    turn = [*TEXTS[0], *first.output, 9, 8]
    for spec in ("wedlm(entropy=0.9)", "greedy", "wedlm"):
        second = ask(spec, turn)
        assert second.cached_tokens >= (len(turn) - 4) // 16 * 16 > len(TEXTS[0])
        alone = ask(spec, turn, Engine({TARGET: toy()}, Limits(kv_tokens=4096), LetterText))
        assert second.output == alone.output
        assert alone.cached_tokens == 0


def test_a_long_prompt_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is read in several forwards, so other requests run between them."""
    rows: list[int] = []
    model, forward = toy(), ToyBackend.forward

    def counted(backend: ToyBackend, spans: Any) -> Any:
        rows.append(sum(len(span.positions) for span in spans))
        return forward(backend, spans)

    monkeypatch.setattr(ToyBackend, "forward", counted)
    engine = Engine({TARGET: model}, Limits(kv_tokens=8192, step_tokens=16), LetterText)
    prompt = np.arange(100, dtype=np.int32) % 20 + 4
    job = "wedlm(entropy=0.9)", prompt, {"max_tokens": 12, "ignore_eos": True}
    (made,) = engines.served(engine, [job])
    assert max(rows) <= 16 + 16
    (whole,) = served(toy(), job)
    assert made.output == whole.output


def unshifted(kind: Any) -> dict[str, Backend]:
    return {TARGET: toy(700)}


@pytest.mark.parametrize(
    "case",
    cases(
        "wedlm(entropy=0.9)", unshifted, kinds=("toy-causal-canvas",),
        only=("mixed-methods", "prefix-cache", "cancelled-neighbour", "stop-strings", "chunks-of-3",
              "end-of-text", "context-end", "constrained", "log-probabilities", "max-tokens",
              "little-memory", "penalties", "bans", "several-choices"),
    ),
    ids=str,
)  # fmt: skip
def test_what_every_method_promises(case) -> None:
    case.run()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constraints_hold(temperature: float) -> None:
    constraint = records(29)
    params = {"max_tokens": 24, "temperature": temperature, "seed": 5}
    (made,) = served(toy(), ("wedlm(entropy=1.5)", TEXTS[0], params), constraint=constraint)
    assert made.finish_reason == "stop"
    matcher = constraint.follow((EOS,))
    assert all(matcher.allows(made.output[:at], token) for at, token in enumerate(made.output))
    assert made.forwards < len(made.output)  # A token that the constraint forces has entropy 0.


def test_the_native_core_gives_equal_bits_in_any_batch() -> None:
    config, weights = masked()
    jobs = [("wedlm(entropy=3.5)", text, params) for text in TEXTS[:2] for params in PARAMS]
    alone = [
        served(NativeBackend(config, weights, dtype="q4", threads=1), job)[0].output for job in jobs
    ]
    together = served(NativeBackend(config, weights, dtype="q4", threads=2), *jobs)
    assert [made.output for made in together] == alone


@pytest.mark.parametrize(
    "facts", [{"masked": False}, {"shift": True}, {"attention": "full"},
              {"attention": "block", "block_length": 4}],
)  # fmt: skip
def test_other_models_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="train wedlm"):
        served(toy(**facts), ("wedlm", TEXTS[0], {}))


def test_a_model_without_masks_is_refused_by_the_front() -> None:
    with LLM("paradecode/tiny-autoregressive", threads=1) as llm, pytest.raises(InvalidInput):
        llm.complete("copy: Ana", decoder="wedlm", max_tokens=4)


def test_the_paper_s_code_names_its_settings_so() -> None:
    names = "wedlm_window_size=8,wedlm_entropy_threshold=0.6,wedlm_pos_penalty_factor=0.01"
    assert str(parse(f"wedlm({names})")) == "wedlm(window=8,entropy=0.6,distance=0.01)"
