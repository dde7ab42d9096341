"""Draft heads on disk draft the same as the reference code, and written heads can be read.

``heads/eagle1.safetensors`` and ``heads/eagle3.safetensors`` hold tiny random heads and the results
of SafeAILab/EAGLE at commit cb7e0841 for them. These come from ``cnets1.py`` and ``cnets.py``
(topK_genrate with 4 candidates, 4 levels and 11 nodes). They are the states of nine rows, and the
trees after six and after nine rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.backends.heads.run import run_head
from paradecode.backends.native.heads import run_networks
from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.network import Network, Op
from paradecode.core.tree import ROOT, TokenTree
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.models.heads.files import write_head
from paradecode.testing.draft_heads import KINDS, random_head
from paradecode.testing.network_reference import apply_network

FIXTURES = Path(__file__).parent / "heads"
SIZES = {
    "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip


def config(hidden: int = 16, vocabulary: int = 40, layers: int = 8) -> ModelConfig:
    return uniform("t", "llama", vocabulary, hidden, layers, 2, 1, 8, 8, rope=Rope(dim=8))


def nothing(name: str) -> np.ndarray:
    raise InvalidModel(name, None, "this head needs nothing of the target")


def reference(name: str, folder: Path) -> tuple[Head, dict[str, np.ndarray]]:
    """Return a fixture's head, read from a published folder, and the reference's results."""
    found = load_file(FIXTURES / f"{name}.safetensors")
    save_file({n[2:]: t for n, t in found.items() if n.startswith("w.")},
              folder / "model.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(SIZES))
    tensors = {"head": found["lm_head"], "norm": np.ones(16, np.float32)}
    head = build_head(read_head(folder), config(), tensors.__getitem__)
    if name == "eagle1":  # The fixture's features are behind the target's norm.
        same = {"one": np.ones(16, np.float32)}
        one = Network({"features": 16}, (Op("y", "scale", ("features",), ("one",)),), same)
        head = replace(head, enter=one)
    return head, found


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(tokens, parents)):
        found[node] = (*found[parent], token)
    return {path for path in found.values() if path}


def drafted(tree: TokenTree) -> set[tuple[int, ...]]:
    return paths(tree.tokens.tolist(), tree.parents.tolist())


def theirs(found: dict[str, np.ndarray], name: str) -> set[tuple[int, ...]]:
    """Return the token paths of a reference tree; its node 0 is the last committed token."""
    seen = found[f"{name}.mask"] > 0
    parents = [max((s for s in np.flatnonzero(row) if s != n), default=0)
               for n, row in enumerate(seen)]  # fmt: skip
    return paths(found[f"{name}.tokens"][1:].tolist(), [p - 1 for p in parents[1:]])


@pytest.mark.parametrize("name", ["eagle1", "eagle3"])
def test_trees_are_those_of_the_reference_code(name, tmp_path):
    head, found = reference(name, tmp_path)
    memory, tokens = Memory(), found["tokens"].astype(np.int64)
    for said, first, last in (("first", 0, 6), ("second", 6, 9)):
        rows, known = found["features"][first:last], tokens[first + 1 : last + 1]
        asked = HeadDraft(memory, rows, known, first, count=11, width=4, depth=4)
        (tree,) = run_head(head, [asked], apply_network)
        assert len(drafted(tree)) == 11
        assert drafted(tree) == theirs(found, said)


@pytest.mark.parametrize("name", ["eagle1", "eagle3"])
def test_states_are_those_of_the_reference_code(name, tmp_path):
    head, found = reference(name, tmp_path)
    states: list[np.ndarray] = []

    def run(network, items):
        made = apply_network(network, items)
        if network is head.blocks[-1].after and not states:
            states.append(made[0])
        return made

    tokens = found["tokens"].astype(np.int64)[1:]
    run_head(head, [HeadDraft(Memory(), found["features"], tokens, 0, 4, 2, 1)], run)
    assert np.allclose(states[0], found["states"], atol=2e-5)


def asked(head: Head, rows: int = 7, seed: int = 0, memory: Memory | None = None) -> HeadDraft:
    random = np.random.default_rng(seed)
    features = random.standard_normal((rows, head.enter.inputs["features"])).astype(np.float32)
    known = random.integers(0, 40, rows)
    return HeadDraft(memory or Memory(), features, known, 0, count=12, width=3, depth=4)


def head_of(kind: str, folder: Path, vocabulary: int = 0) -> Head:
    stored = read_head(random_head(kind, config(), folder / kind))
    return build_head(stored, config(), nothing, vocabulary)


@pytest.mark.parametrize(("dtype", "most"), [("q8", 0.03), ("q4", 0.3)])
@pytest.mark.parametrize("kind", KINDS)
def test_rounded_matrices_say_nearly_the_same(kind, dtype, most, tmp_path):
    head = head_of(kind, tmp_path).held_in(dtype)
    for out in head.outs:
        wide = 5, out.inputs["state"]
        states = np.random.default_rng(0).standard_normal(wide).astype(np.float32)
        (rough,) = run_networks(out, [{"state": states}])
        (fine,) = apply_network(out, [{"state": states}])
        assert 0 < np.abs(rough - fine).max() < most * np.abs(fine).max()
        (alone,) = run_networks(out, [{"state": states[2:3]}])
        assert np.array_equal(alone[0], rough[2])


@pytest.mark.parametrize("kind", KINDS)
def test_heads_run_alike_natively_in_torch_and_in_numpy(kind, tmp_path):
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.network import TorchNetworks

    head = head_of(kind, tmp_path).held_in("f32")
    runs = (apply_network, run_networks, TorchNetworks(torch.device("cpu")).apply)
    trees = [run_head(head, [asked(head), asked(head, 2, 1)], run) for run in runs]
    for others in trees[1:]:
        for tree, other in zip(trees[0], others):
            assert drafted(tree) == drafted(other)
            assert np.allclose(tree.estimates, other.estimates, atol=1e-4)


@pytest.mark.parametrize(("kind", "layout"), [
    *((kind, layout) for kind in ("eagle3", "p-eagle") for layout in ("eagle3", "speculators")),
    ("clover", "eagle3"), ("clover-2", "eagle3"), ("falcon", "eagle3"), ("chimera", "eagle3"),
    ("longspec", "eagle3"), ("dovetail", "eagle3"),
])  # fmt: skip
def test_written_heads_draft_the_same(kind, layout, tmp_path):
    stored = read_head(random_head(kind, config(), tmp_path / "a"))
    sizes = {"hidden_size": 16, "vocab_size": 40}
    write_head(replace(stored, verifier="some/model"), tmp_path / "b", sizes, layout)
    again = read_head(tmp_path / "b")
    said = json.loads((tmp_path / "b" / "config.json").read_text())
    assert ("speculators_model_type" in said) == (layout == "speculators")
    assert again.verifier == ("some/model" if layout == "speculators" else "")
    trees = []
    for each in (stored, again):
        head = build_head(each, config(), nothing)
        trees += run_head(head, [asked(head)], apply_network)
    assert drafted(trees[0]) == drafted(trees[1])
    assert np.array_equal(trees[0].estimates, trees[1].estimates)


@pytest.mark.parametrize(
    "kind", ["eagle3", "clover", "clover-2", "falcon", "chimera", "longspec", "dovetail"]
)
def test_heads_written_in_8_bits_are_read(kind, tmp_path):
    stored = read_head(random_head(kind, config(), tmp_path / "a"))
    write_head(stored, tmp_path / "b", {"hidden_size": 16, "vocab_size": 40}, bits=8)
    again = read_head(tmp_path / "b")
    assert {name: t.shape for name, t in again.tensors.items()} == {
        name: t.shape for name, t in stored.tensors.items()
    }
    head = build_head(again, config(), nothing)
    assert len(run_head(head, [asked(head)], apply_network)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_trimmed_head_ranks_the_tokens_that_are_left(kind, tmp_path):
    whole, trimmed = head_of(kind, tmp_path), head_of(kind, tmp_path, 9)
    known = np.arange(40) if whole.to_target is None else whole.to_target
    assert trimmed.to_target.tolist() == known[:9].tolist()
    (tree,) = run_head(trimmed, [asked(trimmed)], apply_network)
    assert len(tree)
    assert set(tree.tokens.tolist()) <= set(known[:9].tolist())


def broken(folder: Path, change) -> Path:
    random_head("eagle3", config(), folder)
    tensors, said = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    change(tensors, said)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def gone(name):
    return lambda tensors, said: tensors.pop(name)


@pytest.mark.parametrize(("change", "field"), [
    (gone("fc.weight"), "tensors"),
    (gone("norm.weight"), "norm.weight"),
    (gone("layers.0.mlp.up_proj.weight"), "mlp.up_proj"),
    (lambda t, said: t.update({"d2t": t["d2t"] + 100}), "d2t"),
    (lambda t, said: t.update({"d2t": t["d2t"][::-1].copy()}), "d2t"),
    (lambda t, said: t.update({"d2t": t["d2t"][1:].copy()}), "d2t"),
    (lambda t, said: t["norm.weight"].fill(np.nan), "norm.weight"),
    (lambda t, said: said.update(num_attention_heads=0), "num_attention_heads"),
    (lambda t, said: said.update(head_dim=6), "q_proj"),
    (lambda t, said: said.update(eagle_aux_hidden_state_layer_ids=[0]), "layer_ids"),
    (lambda t, said: said.update(eagle_aux_hidden_state_layer_ids=[1, 99]), "layer_ids"),
    (lambda t, said: said.update(speculators_model_type="new"), "speculators_model_type"),
    (lambda t, said: said.update(partial_rotary_factor=0.1), "partial_rotary_factor"),
])  # fmt: skip
def test_bad_heads_are_refused_by_name(change, field, tmp_path):
    folder = broken(tmp_path / "bad", change)
    with pytest.raises(InvalidModel, match=field):
        build_head(read_head(folder), config(), nothing)


def test_what_is_no_folder_of_a_head_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidModel, match="it holds none of"):
        read_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidModel, match="damaged"):
        read_head(tmp_path)


def test_pickled_heads_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    random_head("eagle", config(), tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "model.safetensors")
    wanted = read_head(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").unlink()
    torch.save({n: torch.tensor(t).half() for n, t in tensors.items()},
               tmp_path / "a" / "pytorch_model.bin")  # fmt: skip
    found = read_head(tmp_path / "a")
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, values in wanted.tensors.items():
        assert np.allclose(found.tensors[name], values, rtol=2e-3)
