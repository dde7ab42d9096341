"""Masked diffusion checkpoints work in the public API, also with other engines' setting names."""

import json
from pathlib import Path

import pytest
from canvases import POLICIES

from paradecode import LLM
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.sampling import SamplingParams
from paradecode.methods.specs import methods, parse
from paradecode.models.safetensors_dir import read_weights
from program import paradecode
from tiny_folder import ARCHITECTURES, write_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: write_folder(root / kind, kind) for kind in ARCHITECTURES}


def test_bad_configurations_are_refused(tmp_path: Path) -> None:
    for index, changes in enumerate(
        ({"mask_token_id": 9999}, {"mask_token_id": "x"}, {"shift": 3}, {"attention": "some"},
         {"attention": "block", "block_length": 0})
    ):  # fmt: skip
        with pytest.raises(InvalidModel):
            read_weights(write_folder(tmp_path / str(index), "llada", **changes))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("kind", ["llada", "dream", "sdar"])
def test_generate_stream_and_batch(folders: dict[str, Path], kind: str, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    with LLM(folders[kind], backend=backend, dtype="fp32" if backend == "torch" else "f32") as llm:
        assert (llm.families, llm.decoder.method.name) == (("diffusion",), "threshold")
        whole = llm.complete("abc", max_tokens=20, ignore_eos=True, decoder="static")
        assert len(whole.token_ids) == 20
        assert whole.stats.forwards <= 24
        stream = llm.stream(llm.encode("abc"), max_tokens=20, ignore_eos=True, decoder="static")
        chunks = list(stream)
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert [t for chunk in chunks for t in chunk.token_ids] == whole.token_ids
        assert any(None in chunk.canvas for chunk in chunks)
        final = dict(enumerate(whole.token_ids))
        shown = 0
        for chunk in chunks[:-1]:  # What is decided early is what the text says later.
            shown += len(chunk.token_ids)
            for place, token in enumerate(chunk.canvas, shown):
                assert token is None or token == final.get(place, token)
        batch = llm.complete(["abc", "xyz hello"], max_tokens=20, ignore_eos=True, decoder="static")
        assert batch[0].token_ids == whole.token_ids
        fewer = llm.complete("abc", gen_length=16, steps=4, block_length=8, decoder="static")
        assert fewer.stats.forwards <= 5
        plain = llm.complete("abc", max_tokens=20, ignore_eos=True, decoder=None)
        assert plain.token_ids == whole.token_ids


def test_methods_of_the_other_family(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match="needs diffusion methods, such as threshold"):
        LLM(folders["llada"], decoder="prompt-lookup")
    with pytest.raises(InvalidInput, match="needs autoregressive methods, such as prompt-lookup"):
        LLM(folders["llama"], decoder="static")
    with LLM(folders["llama"]) as llm:
        assert str(llm.decoder) == "prompt-lookup"
        with pytest.raises(InvalidInput, match="needs autoregressive methods"):
            llm.complete("abc", decoder="threshold")
        with pytest.raises(InvalidInput, match="setting"):
            llm.complete("abc", steps=3)


@pytest.mark.parametrize("settings", [
    {"steps": -1}, {"steps": 1 << 40}, {"block_length": 2.5}, {"threshold": float("nan")},
    {"cache": "dual(refresh=-1)"}, {"cache": "no-such"}, {"blocks": 7}, {"gen_length": 0},
    {"gen_length": 5, "max_tokens": 5}, {"steps": True}, {"nonsense": 1},
    {"cache": "prefix(" * 900}, {"blocks": "fixed(length=3)"}, {"steps": 4, "diffusion_steps": 4},
])  # fmt: skip
def test_hostile_settings(folders: dict[str, Path], settings: dict[str, object]) -> None:
    with LLM(folders["llada"]) as llm:
        with pytest.raises(InvalidInput):
            llm.complete(
                "abc", **{"max_tokens": 8, **settings} if "gen_length" not in settings else settings
            )  # type: ignore[call-overload]
        assert llm.complete("abc", max_tokens=4, ignore_eos=True).stats.generated == 4


def test_command_line(folders: dict[str, Path]) -> None:
    asked = ["generate", "abc", "--model", str(folders["sdar"]), "--max-tokens", "12", "--json"]
    done = paradecode(*asked)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["decoder"] == "threshold(threshold=0.85,cache=prefix)"
    assert 0 < len(record["token_ids"]) <= 12
    done = paradecode(*asked, "--decoder", "greedy")
    assert done.returncode == 2
    assert "needs diffusion methods" in done.stderr


@pytest.mark.parametrize(("theirs", "ours"), [
    ("static(remasking=low_confidence,diffusion_steps=8,block_size=16)",
     "static(score=low_confidence,steps=8,block_length=16)"),
    ("static(alg=maskgit_plus,denoising_steps=8,bd_size=16)",
     "static(score=maskgit_plus,steps=8,block_length=16)"),
    ("dream(alg=origin,alg_temp=0.2)", "dream(score=origin,noise=0.2)"),
    ("dimple(gamma=0.8,alg=margin)", "dimple(threshold=0.8,score=margin)"),
    ("credit(alpha=0.5,beta=0.6,gamma=0.7)", "credit(weight=0.5,decay=0.6,exponent=0.7)"),
    ("deferred(tau=0.7)", "deferred(threshold=0.7)"),
    ("coherent(seek_mode=false,buffer=3,history=2)", "coherent(seek=false,width=3,depth=2)"),
    ("llada(steps=4)", "static(steps=4)"),
])  # fmt: skip
def test_settings(theirs: str, ours: str) -> None:
    assert parse(theirs) == parse(ours)


@pytest.mark.parametrize("name", POLICIES)
def test_every_method_has_the_settings_of_the_loop_and_names_for_what_it_has(name: str) -> None:
    method = methods()[name]
    known = {entry.name for entry in method.parameters}
    assert {"steps", "block_length", "blocks", "cache"} <= known
    assert set(method.names.values()) <= known
    assert not known & method.names.keys()


@pytest.mark.parametrize("name", ["gen_length", "gen_len", "max_new_tokens"])
def test_the_length_of_the_canvas(name: str) -> None:
    assert SamplingParams.from_mapping({name: 48}).max_tokens == 48
