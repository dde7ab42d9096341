"""Settings may have the names that the models' own scripts and other engines give them."""

from __future__ import annotations

import pytest
from canvases import POLICIES

from paradecode.core.sampling import SamplingParams
from paradecode.methods.specs import methods, parse


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
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
    ],
)  # fmt: skip
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
