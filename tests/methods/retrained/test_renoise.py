"""DiffusionGemma's layers and sampler equal those of transformers, and limits raise errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.core.decoder import Denoise
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.noise import mix
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode.methods.retrained.renoise import random_tokens, surest
from paradecode.models.catalogue import open_model
from paradecode.models.safetensors_dir import read_weights
from tiny_folder import write_folder
from tiny_gemma import CANVAS, END, VOCABULARY, write_gemma
from tiny_gemma import gemma_span as span

torch = pytest.importorskip("torch")
PROMPT = [2, 5, 9, 33, 17, 21, 8, 4, 44, 50]
CLOSE = 3e-4
"""Largest difference of logits; transformers computes norms and softmax in float32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "diffusiongemma-26B-A4B-it")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "DiffusionGemmaForBlockDiffusion"):
        pytest.skip("this transformers has no DiffusionGemma")
    known = transformers.DiffusionGemmaForBlockDiffusion
    model = known.from_pretrained(folder, experts_implementation="eager")
    return model.double().eval()


@pytest.fixture(scope="module", params=[("torch", "fp64"), ("native", "f32")], ids=lambda p: p[0])
def llm(folder: Path, request: pytest.FixtureRequest) -> Any:
    backend, dtype = request.param
    with pytest.MonkeyPatch.context() as patch:
        if backend == "native":
            from paradecode.backends.native.backend import NativeBackend

            # Twelve guesses that read one another would show the rounding of float16 keys.
            patch.setitem(NativeBackend.__init__.__kwdefaults__, "kv_dtype", "f32")
        with LLM(folder, backend=backend, dtype=dtype) as llm:
            yield llm


def backend(folder: Path, change: Any = None) -> Any:
    from paradecode.backends.torch.backend import TorchBackend

    config, weights = read_weights(folder)
    if change is not None:
        weights = change(weights)
    made = TorchBackend(config, weights, dtype="fp64")
    made.reserve(4)
    return made


def canvases(made: Any) -> list[np.ndarray]:
    """Return logits of the prompt, then of three canvases that each read the last guess."""
    found, guess = [made.forward([span(PROMPT, 0)])[0].logits.values], None
    for step in range(3):
        tokens = [(7 * i + 11 * step) % VOCABULARY for i in range(CANVAS)]
        logits = made.forward([span(tokens, len(PROMPT), Denoise(guess))])[0].logits
        found.append(logits.values)
        guess = logits.tempered(0.7)
    return found


def test_text_and_canvases_are_read_as_transformers_reads_them(folder: Path, theirs: Any) -> None:
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        encoded = theirs.model.encoder(ids, attention_mask=torch.ones_like(ids, dtype=torch.bool))
        raw = theirs.lm_head(encoded.last_hidden_state)[0]
        wanted, guess = [(30 * torch.tanh(raw / 30)).numpy()], None
        for step in range(3):
            tokens = [(7 * i + 11 * step) % VOCABULARY for i in range(CANVAS)]
            logits = theirs(
                past_key_values=encoded.past_key_values, decoder_input_ids=torch.tensor([tokens]),
                self_conditioning_logits=guess,
            ).logits  # fmt: skip
            wanted.append(logits[0].numpy())
            guess = logits / 0.7
    found = canvases(backend(folder))
    for ours, other in zip(found, wanted, strict=True):
        assert np.abs(ours - other).max() < CLOSE
        assert (ours.argmax(1) == other.argmax(1)).all()

    def swapped(weights: Any) -> Any:
        """Exchange the scale factors of the encoder and the decoder."""
        other = dict(weights)
        for name in weights:
            if name.endswith(".scale") and "router" not in name:
                beside = name.replace(".scale", ".canvas_scale")
                other[name], other[beside] = weights[beside], weights[name]
        return other

    for ours, other in zip(canvases(backend(folder, swapped)), wanted, strict=True):
        assert np.abs(ours - other).max() > 100 * CLOSE  # The comparison can fail.


def randoms(seed: int, start: int, steps: int) -> list[np.ndarray]:
    lefts = range(steps + 1, 0, -1)
    return [random_tokens(mix(seed), start, left, CANVAS, VOCABULARY) for left in lefts]


@pytest.mark.first(1)
@pytest.mark.parametrize(("steps", "bound", "stable", "sure"), [
    (3, 2.0, 1, 0.005), (12, 2.0, 0, 0.8), (12, 40.0, 1, 2.5), (12, 40.0, 2, 2.5),
])  # fmt: skip
def test_the_sampler_is_the_published_one(llm, theirs, steps, bound, stable, sure, monkeypatch):
    """Three canvases equal the published sampler's, given the same random tokens.

    The best tokens stand in for drawn ones.
    """
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as published

    drawn = [each for i in range(3)
             for each in randoms(5, len(PROMPT) + i * CANVAS, steps)]  # fmt: skip
    lengths = [steps + 1] * 3
    seen: list[int] = []

    def canvas(self: Any, batch_size: int, device: Any) -> Any:
        seen.append(1)
        return torch.tensor(drawn.pop(0).astype(np.int64))[None]

    begun = theirs._prepare_denoiser_inputs

    def begin(**given: Any) -> Any:
        while len(drawn) > sum(lengths):  # Drop random tokens that the last canvas did not use.
            drawn.pop(0)
        lengths.pop()
        return begun(**given)

    monkeypatch.setattr(published.EntropyBoundSampler, "initialize_canvas", canvas)
    monkeypatch.setattr(theirs, "_prepare_denoiser_inputs", begin)
    monkeypatch.setattr(torch, "multinomial", lambda p, num_samples: p.argmax(-1, keepdim=True))
    # Random weights are sure of little.
    settings = {"entropy": bound, "confidence": sure, "stable": stable}
    made = theirs.generate(
        torch.tensor([PROMPT]), max_new_tokens=3 * CANVAS, max_denoising_steps=steps,
        sampler_config=published.EntropyBoundSamplerConfig(bound), confidence_threshold=sure,
        stability_threshold=stable, t_min=0.4, t_max=0.8, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    wanted = made.sequences[0, len(PROMPT) :].tolist()
    (ours,) = llm.complete([PROMPT], max_tokens=3 * CANVAS, ignore_eos=True, seed=5, steps=steps,
                           **settings)  # fmt: skip
    assert ours.token_ids == wanted
    assert len(set(wanted)) > 4
    refined = [step.canvas for step in ours.trace if step.canvas is not None]
    assert len(refined) == len(seen) - 3  # One canvas more than forwards in each of theirs.
    if steps == 12:
        assert len(refined) < 3 * steps  # Some canvases end before their last step.
        assert bound > 2 or any(step.revoked for step in refined)


def test_a_guess_of_other_rows_is_refused(folder: Path) -> None:
    made = backend(folder)
    made.forward([span(PROMPT, 0)])
    logits = made.forward([span([4] * CANVAS, len(PROMPT), Denoise())])[0].logits
    with pytest.raises(InvalidInput, match="denoise"):
        made.forward([span([4] * 3, len(PROMPT), Denoise(logits))])
    states = np.zeros((CANVAS, 32), np.float32)
    both = replace(span([4] * CANVAS, len(PROMPT), Denoise()), embeddings=states)
    with pytest.raises(InvalidInput, match="denoise"):
        made.forward([both])


def test_the_surest_tokens_are_kept() -> None:
    random = np.random.default_rng(0)
    for bound in (0.0, 0.1, 1.0, 30.0):
        entropies = random.exponential(size=20).round(2)
        kept = surest(entropies, bound)
        ranked = sorted(range(20), key=lambda i: (entropies[i], i))
        wanted = {i for n, i in enumerate(ranked) if sum(entropies[ranked[:n]]) <= bound}
        assert {*np.flatnonzero(kept).tolist()} == wanted
        assert ranked[0] in wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_changes_no_token(llm: Any, temperature: float) -> None:
    prompts = [PROMPT, PROMPT[:3], [*PROMPT, *PROMPT, 7]]
    params = {"max_tokens": 20, "temperature": temperature, "seed": 3, "steps": 6}
    together = [one.token_ids for one in llm.complete(prompts, **params)]
    alone = [llm.complete([prompt], **params)[0].token_ids for prompt in prompts]
    assert together == alone
    other = llm.complete([PROMPT], **{**params, "seed": 4})[0]
    assert other.token_ids != alone[0]
    assert other.finish_reason in ("stop", "length")


def test_a_prompt_is_shared_and_the_text_goes_on(folder: Path) -> None:
    with LLM(folder, dtype="q8", limits=Limits(batch=4, kv_tokens=2048)) as llm:
        prompt = PROMPT * 4
        params = {"max_tokens": 2 * CANVAS + 3, "ignore_eos": True, "seed": 1, "steps": 4}
        first, again = (llm.complete([prompt], **params)[0] for _ in range(2))
        assert again.token_ids == first.token_ids
        assert len(first.token_ids) == 2 * CANVAS + 3
        assert again.stats.cached_tokens >= 32
        # The last canvas has its full length, even where max_tokens cuts the text.
        shorter = llm.complete([prompt], **{**params, "max_tokens": CANVAS + 1})[0]
        assert shorter.token_ids == first.token_ids[: CANVAS + 1]


def test_ends_and_bans_are_kept(llm: Any) -> None:
    plain = llm.complete([PROMPT], max_tokens=16, ignore_eos=True, seed=2, steps=4)[0].token_ids
    unwanted = plain[3]
    banned = llm.complete([PROMPT], max_tokens=16, ignore_eos=True, seed=2, steps=4,
                          logit_bias={unwanted: -100.0})[0]  # fmt: skip
    assert unwanted not in banned.token_ids
    ended = llm.complete([PROMPT], max_tokens=16, seed=2, steps=4, logit_bias={END: 100.0})[0]
    assert ended.finish_reason == "stop"
    assert ended.token_ids == [END]
    later = llm.complete([PROMPT], max_tokens=16, seed=2, steps=4, min_tokens=10,
                         logit_bias={END: 100.0})[0]  # fmt: skip
    assert later.token_ids.index(END) == len(later.token_ids) - 1 >= 10
    said = llm.complete([PROMPT], max_tokens=12, ignore_eos=True, steps=3, logprobs=2)[0]
    assert said.logprobs is not None
    assert [entry.token for entry in said.logprobs] == said.token_ids


def test_a_folder_opens_by_its_path(folder: Path) -> None:
    with LLM(folder) as llm:
        assert str(llm.decoder) == "renoise"
        assert (llm.families, llm.backend.name) == (("diffusion",), "native")
        assert llm.config.eos_tokens == (END, 3)
        for spec, fix in (("threshold", "use renoise"), ("static(cache=prefix)", "use renoise")):
            with pytest.raises(InvalidInput, match=fix):
                llm.complete("ab", decoder=spec, max_tokens=4)
        with pytest.raises(InvalidInput, match="diffusion"):
            llm.complete("ab", decoder="prompt-lookup", max_tokens=4)
        with pytest.raises(InvalidInput, match="renoise has none"):
            llm.complete("ab", repetition_penalty=1.2, max_tokens=4)
        with pytest.raises(InvalidInput, match="renoise cannot follow"):
            llm.complete("ab", constraint={"type": "choice", "value": ["a"]}, max_tokens=4)


def test_what_cannot_run_it_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="ranks"):
        LLM(folder, ranks=2)
    other = write_folder(tmp_path / "sdar", "llada")
    with LLM(other) as llm, pytest.raises(InvalidInput, match="DiffusionGemma"):
        llm.complete("ab", decoder="renoise", max_tokens=4)


def test_published_layouts_of_wide_heads_mean_the_same(folder: Path, tmp_path: Path) -> None:
    own = {"2": {"head_dim": 16, "num_key_value_heads": 1}}
    newer = write_gemma(tmp_path / "newer", per_layer_config=own, global_head_dim=None,
                        num_global_key_value_heads=None)  # fmt: skip
    usual = write_gemma(tmp_path / "usual", rope_parameters=None, num_hidden_layers=3)
    for each in (newer, usual):
        assert read_weights(each)[0].stack == read_weights(folder)[0].stack


@pytest.mark.parametrize(("changes", "text", "said"), [
    ({"text_config": 5}, {}, "text_config"), ({"canvas_length": 0}, {}, "canvas_length"),
    ({"canvas_length": 1 << 40}, {}, "canvas"),
    ({"tie_word_embeddings": False}, {}, "tie_word_embeddings"),
    ({}, {"hidden_activation": "silu"}, "hidden_activation"),
    ({}, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ({}, {"layer_types": ["full_attention"]}, "layer_types"),
    ({}, {"layer_types": ["sliding_attention", "?", "full_attention"]}, "layer_types"),
    ({}, {"num_experts": None}, "num_experts"), ({}, {"top_k_experts": 9}, "chosen"),
    ({}, {"global_head_dim": 7}, "rope.dim"), ({}, {"final_logit_softcapping": -1.0}, "softcap"),
    ({}, {"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
    ({}, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type"),
    ({}, {"per_layer_config": {"2": {"head_dim": "x"}}}, "head_dim"),
    ({}, {"per_layer_config": [1]}, "per_layer_config"),
    ({}, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({}, {"sliding_window": 0}, "sliding_window"), ({}, {"eos_token_id": "x"}, "id"),
    ({}, {"global_head_dim": 32}, "implies"),
])  # fmt: skip
def test_damaged_configurations_are_named(tmp_path, changes, text, said):
    with pytest.raises(InvalidModel, match=said):
        open_model(write_gemma(tmp_path / "m", changes, **text))


@pytest.mark.parametrize("change", ["unknown", "missing", "shape", "flat"])
def test_damaged_tensors_are_named(tmp_path: Path, change: str) -> None:
    folder = write_gemma(tmp_path / "m")
    tensors = dict(load_file(folder / "model.safetensors"))
    name = "model.decoder.layers.1.experts.gate_up_proj"
    if change == "unknown":
        tensors["model.decoder.layers.1.per_layer_gate.weight"] = tensors[name]
    elif change == "missing":
        del tensors[name]
    elif change == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name][:, :-2])
    else:
        tensors[name] = tensors[name].reshape(-1)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidModel, match=r"per_layer_gate|experts"):
        open_model(folder)
    json.loads((folder / "config.json").read_text())
