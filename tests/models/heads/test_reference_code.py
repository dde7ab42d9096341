"""Heads read from folders give the same results as the published code (see README.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from paradecode.backends.heads.run import run_head
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.network import Array, Item, Network, Op
from paradecode.models.config import Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.testing.network_reference import apply_network

HERE = Path(__file__).parent
CONFIG = uniform("t", "llama", 40, 16, 8, 2, 1, 8, 8, rope=Rope(dim=8))
Numbers = dict[str, np.ndarray]


def reference(name: str, folder: Path) -> tuple[Head, Numbers]:
    """Return the head, read from a published folder, and the published code's results."""
    found = load_file(HERE / f"{name}.safetensors")
    with safe_open(HERE / f"{name}.safetensors", "numpy") as file:
        (folder / "config.json").write_text(file.metadata()["config"])
    weights = {n[2:]: t for n, t in found.items() if n.startswith("w.")}
    save_file(weights, folder / "model.safetensors")
    target = {n[7:]: t for n, t in found.items() if n.startswith("target.")}
    target["norm"] = np.ones(16, np.float32)
    head = build_head(read_head(folder), CONFIG, target.__getitem__)
    if head.taps == (-1,):  # These features are behind the target's norm already.
        one = {"one": np.ones(16, np.float32)}
        same = Network({"features": 16}, (Op("y", "scale", ("features",), ("one",)),), one)
        head = replace(head, enter=same)
    return head, found


class Watch:
    """Run networks, keep the results of ``seen``, and give ``fed`` the tokens of later calls."""

    def __init__(self, *seen: Network, fed: Network | None = None, tokens: Any = ()) -> None:
        self.made: dict[int, list[Array]] = {id(network): [] for network in seen}
        self.fed, self.tokens = fed, list(tokens)

    def __call__(self, network: Network, items: Sequence[Item]) -> list[Array]:
        if network is self.fed:
            token = self.tokens.pop(0)
            items = items if token is None else [{**items[0], "token": np.array([token])}]
        made = apply_network(network, items)
        if id(network) in self.made:
            self.made[id(network)].append(made[0])
        return made

    def of(self, network: Network) -> np.ndarray:
        return np.concatenate(self.made[id(network)])


def draft(found: Numbers, rows: int, tokens: np.ndarray, depth: int) -> HeadDraft:
    return HeadDraft(Memory(), found["features"][:rows], tokens[:rows].astype(np.int64), 0,
                     count=depth, width=1, depth=depth)  # fmt: skip


@pytest.mark.parametrize("name", ["eagle3-norms", "eagle3-fc-norm", "eagle3-yarn"])
@pytest.mark.parametrize("row", [0, 3, 8])
def test_levels_of_eagle3(name: str, row: int, tmp_path: Path) -> None:
    head, found = reference(name, tmp_path)
    tokens, said = found["tokens"], found["logits"]
    first = head.blocks[0].before
    watch = Watch(head.outs[0], fed=first, tokens=[None, tokens[row + 1], tokens[row + 2]])
    run_head(head, [draft(found, row + 1, tokens, 3)], watch)
    assert np.allclose(watch.of(head.outs[0]), said[:, row], atol=3e-5)
    assert head.taps == (1, 3, 6)
    assert head.to_target.tolist() == (found["w.d2t"] + np.arange(24)).tolist()


@pytest.mark.parametrize("row", [0, 3, 7])
def test_levels_of_clover(row: int, tmp_path: Path) -> None:
    head, found = reference("clover-2", tmp_path)
    assert head.cell is not None
    tokens, said = found["tokens"], found["logits"]
    watch = Watch(head.outs[0], fed=head.cell.embed, tokens=[None, *tokens[row + 1 : row + 4]])
    run_head(head, [draft(found, row + 1, tokens, 4)], watch)
    assert np.allclose(watch.of(head.outs[0]), said[:, row], atol=3e-5)


@pytest.mark.parametrize("anchor", [0, 4, 9])
def test_depths_of_p_eagle(anchor: int, tmp_path: Path) -> None:
    head, found = reference("p-eagle", tmp_path)
    watch = Watch(head.outs[0])
    run_head(head, [draft(found, anchor + 1, found["tokens"], 4)], watch)
    theirs = found["logits"][found["anchor"] == anchor]
    assert found["depth"][found["anchor"] == anchor].tolist() == list(range(len(theirs)))
    assert len(theirs) > 1
    assert np.allclose(watch.of(head.outs[0])[: len(theirs)], theirs, atol=3e-5)


@pytest.mark.parametrize("name", ["mtp-speculators", "mtp-qwen3.5", "mtp-mimo", "mtp-deepseek"])
def test_tokens_of_a_module_for_multi_token_prediction(name: str, tmp_path: Path) -> None:
    head, found = reference(name, tmp_path)
    for row in (0, 4):
        watch = Watch(head.outs[0])
        run_head(head, [draft(found, row + 1, found["tokens"], 1)], watch)
        assert np.allclose(watch.of(head.outs[0])[0], found["text"][row], atol=3e-5)
    watch = Watch(head.outs[0])
    (tree,) = run_head(head, [draft(found, 11, found["tokens"], 3)], watch)
    assert tree.tokens.tolist() == found["logits"].argmax(axis=1).tolist()
    assert np.allclose(watch.of(head.outs[0]), found["logits"], atol=3e-5)


@pytest.mark.parametrize("name", ["dflash", "dflash-zlab", "dspark", "dspark-gated"])
def test_masks_of_a_block(name: str, tmp_path: Path) -> None:
    head, found = reference(name, tmp_path)
    assert head.masks is not None
    assert head.taps == (2, 6)
    tokens, first = found["tokens"], head.masks.first
    assert first == (0 if name == "dspark" else 1)
    for anchor, said in zip(found["anchors"].tolist(), found["logits"]):
        bias = head.masks.bias
        seen = [head.outs[0]] if bias is None else [head.outs[0], bias]
        watch = Watch(*seen, fed=bias, tokens=tokens[anchor:])
        (tree,) = run_head(head, [draft(found, anchor, tokens[1:], 4)], watch)
        made = sum(watch.of(network) for network in seen)
        assert np.allclose(made, said[first:], atol=3e-5)
        assert len(tree) == 4 - first
        best = said[first:].argmax(axis=1)
        assert tree.tokens.tolist() == (best if head.to_target is None else head.to_target[best]
                                        ).tolist()  # fmt: skip


@pytest.mark.parametrize("name", ["medusa", "medusa-shared"])
def test_heads_of_medusa(name: str, tmp_path: Path) -> None:
    head, found = reference(name, tmp_path)
    watch = Watch(*head.outs)
    asked = replace(draft(found, 11, found["tokens"], 4), count=63, width=10)
    (tree,) = run_head(head, [asked], watch)
    for number, out in enumerate(head.outs):
        assert np.allclose(watch.of(out)[0], found["logits"][number, -1], atol=3e-5)
    # Their tree is ranked by position, ours by probability; the tokens of a level are the same.
    depth = found["mask"].sum(axis=1).astype(int) - 1
    for level in range(1, 5):
        theirs = set(found["candidates"][depth == level].tolist())
        ours = set(tree.tokens[tree.depths == level].tolist())
        best = np.argsort(-found["logits"][level - 1, -1])[:10].tolist()
        assert theirs <= set(best)
        assert ours <= set(best)
        assert best[0] in theirs


def test_configs_are_those_of_the_published_code() -> None:
    for path in HERE.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            said = file.metadata()
        assert len(said["source"].split()[1]) == 40
        assert path.stem in ("eagle1", "eagle3") or json.loads(said["config"])
