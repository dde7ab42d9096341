"""HAMburger writes the same groups as a plain implementation without engine, cache and networks."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from toys import attend_causally, check_refused, decoded, in_float64

from by_hand import attended, normed, sigmoid, silu, turned
from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE
from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.llm import LLM
from paradecode.methods.retrained.layers import TokenGroups
from paradecode.models.catalogue import open_model
from paradecode.testing.harness import limits_of

MODEL = "paradecode/tiny-autoregressive"
ASKED = ("copy: Ana Bob", "add: 47 + 85", "sort: 3 1 2", "reverse: Ben Sam Art Ida")


def parts(layers: int, width: int, heads: int, most: int = 3) -> TokenGroups:
    """Create random networks with which about every second group goes on."""
    facts = {"layers": layers, "hidden_size": width, "heads": heads, "inner": 20, "blocks": 2,
             "most": most}  # fmt: skip
    random, made = np.random.default_rng(3), {}
    for name, shape in TokenGroups(facts, {}).shapes().items():
        made[name] = random.standard_normal(shape).astype(np.float32) * 2 / np.sqrt(shape[0])
    return TokenGroups(facts, made)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    config, place = open_model(MODEL).config, tmp_path_factory.mktemp("parts") / "parts"
    parts(config.layers, config.hidden_size, config.heads).save(place)
    return place


def mixed(q, k, v, heads, places):
    """Return causal attention [n, D] of one query row at the last position, head by head."""
    out = []
    for part in np.split(np.arange(q.shape[-1]), heads):
        keys = [turned(row[part], place) for row, place in zip(k, places)]
        out.append(attended(turned(q[part], places[-1]), keys, v[:, part]))
    return np.concatenate(out)


def merged(w, heads, words):
    mean = words.mean(0)
    both = np.concatenate([words, w["merge.places"][: len(words)]], 1)
    k, v = both @ w["merge.k"], both @ w["merge.v"]
    return mean + mixed(mean @ w["merge.q"], k, v, heads, [0] * len(words)) @ w["merge.o"]


def unrolled(w, heads, rows):
    x = normed(rows)
    for block in range(2):
        b, out = f"{block}.", []
        h = normed(x) * w[b + "attn_norm"]
        k, v = h @ w[b + "k"], h @ w[b + "v"]
        for n in range(len(x)):
            seen = mixed(h[n] @ w[b + "q"], k[: n + 1], v[: n + 1], heads, range(n + 1))
            y = x[n] + seen @ w[b + "o"]
            h2 = normed(y) * w[b + "mlp_norm"]
            out.append(y + (silu(h2 @ w[b + "gate"]) * (h2 @ w[b + "up"])) @ w[b + "down"])
        x = np.array(out)
    return x[-1]


def ends(w, state):
    x = silu(normed(state) @ w["ends.w1"] + w["ends.b1"])
    x = silu(x @ w["ends.w2"] + w["ends.b2"])
    return sigmoid(x @ w["ends.w3"] + w["ends.b3"])[0]


def by_the_book(model, prompt, made, count, confidence):
    """Return groups of greedy tokens; the whole text is computed again for each, in float64."""
    import torch

    w = {name: tensor.astype(np.float64) for name, tensor in made.tensors.items()}
    heads, table = made.facts["heads"], model.w["embed"]

    rows, places, groups = [table[t] for t in prompt], list(range(len(prompt))), []
    while sum(map(len, groups)) < count and not any(0 in group for group in groups):
        x, taps = torch.stack(rows), []
        known = model.rows(torch.tensor(places))
        for layer in range(6):
            x = model.layer(layer, x, known, attend_causally)
            if layer in (0, 2, 3, 5):  # The last layer of each quarter of six layers.
                taps.append(x[-1].numpy())
        state, group = taps[-1], []
        while True:
            group.append(int(model.logits(torch.tensor(state)[None]).argmax()))
            done = group[-1] == 0 or sum(map(len, groups)) + len(group) == count
            if done or len(group) == 3 or 1 - ends(w, state) < confidence:
                break
            state = unrolled(w, heads, np.array([*taps, *table[group].numpy()]))
        groups.append(group)
        words = table[group].numpy()
        rows.append(torch.tensor(merged(w, heads, words) if len(group) > 1 else words[0]))
        places.append(places[-1] + len(group))
    return groups


def test_the_plain_reading_gives_the_same_groups(path):
    model, made = in_float64(MODEL), TokenGroups.open(str(path))
    sizes = set()
    with LLM(MODEL, backend="torch", dtype="fp64", threads=1) as llm:
        prompts = [llm.encode(text) for text in ASKED]
        for confidence in (0.02, 0.5):
            wanted = [by_the_book(model, prompt, made, 9, confidence) for prompt in prompts]
            spec = f"hamburger(parts='{path}',confidence={confidence})"
            found = llm.complete(prompts, decoder=spec, max_tokens=9)
            assert [one.token_ids for one in found] == [[*chain(*groups)] for groups in wanted]
            # The prompt takes two forwards, of which the second is the first group's.
            assert [one.stats.forwards - 1 for one in found] == [len(groups) for groups in wanted]
            # Forwards of the output head alone do not count as rows of the model.
            rows = [len(prompt) - 1 + len(groups) for prompt, groups in zip(prompts, wanted)]
            assert [one.stats.rows for one in found] == rows
            sizes |= {len(group) for groups in wanted for group in groups}
    assert sizes == {1, 2, 3}


def engine() -> Engine:
    base = open_model(MODEL)
    backend = open_backend("torch", base.config, base.weights, dtype="fp64", threads=1)
    return Engine({TARGET: backend}, limits_of(), weights=base.weights)


def test_a_group_takes_one_slot_of_the_cache(path):
    """Keys and values take a slot for each row, and the pages of so many slots."""
    eng, prompt, ran = engine(), list(range(20, 59)), []
    backend = eng.models[TARGET]
    run = backend.forward
    backend.forward = lambda spans: ran.append(spans[0]) or run(spans)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    spec = f"hamburger(parts='{path}',confidence=0.02)"
    assert len(decoded(eng, prompt, spec, params)) == 60
    rows = [span for span in ran if span.layers is None]
    written = [slot for span in rows for slot in span.slots.tolist()]
    assert written == [*range(len(prompt) - 1 + len(rows) - 1)]
    assert len(rows) - 1 < 40
    assert len(rows[-1].pages) == -(-len(written) // PAGE) < -(-(len(prompt) + 60) // PAGE)
    assert rows[-1].positions[-1] > written[-1] + 20  # The places are still those of the tokens.


def test_another_worker_goes_on_with_the_same_groups(path):
    """Another worker continues with the same groups, also inside a group.

    It does so even if plain decoding has cached rows of the same text.
    """
    pytest.importorskip("torch")
    spec, made = f"hamburger(parts='{path}',confidence=0.5)", engine()
    for prompt in ([4, 5], list(range(20, 59))):
        params = SamplingParams(max_tokens=14, temperature=0.8, seed=4, ignore_eos=True)
        whole = decoded(made, prompt, spec, params)
        assert len(whole) == 14
        for begun in (1, 2, 3, 11):
            if begun == 11:
                decoded(made, [*prompt, *whole[:11]], "greedy", SamplingParams(max_tokens=1))
            assert decoded(made, prompt, spec, params, whole[:begun]) == whole
        # Other methods do not reuse its cached rows.
        again, greedy = [*prompt, *whole], SamplingParams(max_tokens=5)
        plain = [decoded(one, again, "greedy", greedy) for one in (made, engine())]
        assert plain[0] == plain[1]


def test_groups_of_one_are_plain_decoding(path):
    specs = (f"hamburger(parts='{path}',group=1)", f"hamburger(parts='{path}',confidence=0.5)")
    with LLM(MODEL, threads=1) as llm:
        prompts = [llm.encode(text) for text in ASKED]
        for settings in ({"temperature": 0}, {"temperature": 0.9, "seed": 3, "min_tokens": 9}):
            one, some, plain = (
                [made.token_ids for made in llm.complete(
                    prompts, decoder=spec, max_tokens=12, **settings
                )]
                for spec in (*specs, "greedy")
            )  # fmt: skip
            assert one == plain != some
            for prompt, wanted in zip(prompts, some, strict=True):
                (alone,) = llm.complete([prompt], decoder=specs[1], max_tokens=12, **settings)
                assert alone.token_ids == wanted


def test_files_that_do_not_fit_are_refused(tmp_path, path):
    good = TokenGroups.open(str(path))
    parts(2, 64, 4).save(tmp_path / "other")
    replace(good, facts={**good.facts, "most": 4}).save(tmp_path / "long")
    replace(good, facts={**good.facts, "heads": 5}).save(tmp_path / "heads")
    refused = {"": "train hamburger", tmp_path / "other": "layers 2", tmp_path / "long": "shape",
               tmp_path / "heads": "2 . heads", tmp_path / "none": "readable file"}  # fmt: skip
    check_refused("hamburger(parts='{}')", refused)
