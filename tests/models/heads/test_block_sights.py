"""The mask rows of a block attend in each layer to windows, and to no later rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_heads import CONFIG, HEADS, SIZE, opened

from by_hand import Numbers, attended, check_paths, normed, silu, stored, turned
from paradecode.backends.heads.run import run_head
from paradecode.backends.native.heads import run_networks
from paradecode.core.head import HeadDraft, Memory
from paradecode.testing.cases import CASES
from paradecode.testing.conformance import check
from paradecode.testing.draft_heads import random_head
from paradecode.testing.network_reference import apply_network
from paradecode.testing.toy import toy_config

ROWS = 5
SLIDING, FULL = "sliding_attention", "full_attention"


def written(folder: Path, types: list[str] | None, own: dict[str, Any], **said: Any) -> Path:
    """Write a DFlash head; settings in ``own`` make it one of z-lab's."""
    random_head("dflash", CONFIG, folder, seed=4)
    config = json.loads((folder / "config.json").read_text()) | said
    if types is not None:
        config["transformer_layer_config"] |= {"layer_types": types, "sliding_window": 6}
    if own:
        del config["speculators_model_type"]
        config |= {"dflash_config": own}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def block(w: Numbers, features: np.ndarray, anchor: int, sees: list[Any]) -> np.ndarray:
    """Return the normed states of all rows of a block behind ``features``.

    Args:
        sees: for each layer, a rule that says of a row of the block and of a position whether the
            row sees it.
    """
    start = len(features)
    tokens = [anchor] + [1] * (ROWS - 1)
    states = [w["embed_tokens.weight"][token] for token in tokens]
    text = [normed(w["fc.weight"] @ row, w["hidden_norm.weight"]) for row in features]
    for number, rule in enumerate(sees):

        def of(part: str, x: np.ndarray, number: int = number) -> np.ndarray:
            made = w[f"layers.{number}.{part}_proj.weight"] @ x
            return made.reshape(-1, SIZE) if "mlp" not in part and part[-1] != "o" else made

        gains = {p: w[f"layers.{number}.self_attn.{p}_norm.weight"] for p in "qk"}
        own = [normed(x, w[f"layers.{number}.input_layernorm.weight"]) for x in states]
        kernels, mixes = own, f"layers.{number}.attention_conv.base_kernel" in w
        if mixes:
            own = convolved(w, f"layers.{number}.attention_conv", own, kernels, 0)
        keys = [turned(normed(of("self_attn.k", x), gains["k"]), i)
                for i, x in enumerate([*text, *own])]  # fmt: skip
        values = [of("self_attn.v", x) for x in [*text, *own]]
        made = []
        for row, n in enumerate(own):
            query = turned(normed(of("self_attn.q", n), gains["q"]), start + row)
            seen = [i for i in range(start + ROWS) if rule(row, i - start)]
            mixed = [attended(query[head], [keys[i][0] for i in seen],
                              np.array([values[i][0] for i in seen]))
                     for head in range(HEADS)]  # fmt: skip
            made.append(of("self_attn.o", np.concatenate(mixed)))
        if mixes:
            made = convolved(w, f"layers.{number}.attention_conv", made, kernels, 1)
        states = [x + each for x, each in zip(states, made)]
        own = [normed(x, w[f"layers.{number}.post_attention_layernorm.weight"]) for x in states]
        kernels = own
        if mixes:
            own = convolved(w, f"layers.{number}.mlp_conv", own, kernels, 0)
        made = [of("mlp.down", silu(of("mlp.gate", n)) * of("mlp.up", n)) for n in own]
        if mixes:
            made = convolved(w, f"layers.{number}.mlp_conv", made, kernels, 1)
        states = [x + each for x, each in zip(states, made)]
    return np.array([normed(x, w["norm.weight"]) for x in states])


def convolved(w: Numbers, name: str, x: list[np.ndarray], rows: list[np.ndarray], side: int) -> Any:
    """Return the rows x of a block, each mixed with the one before it by kernels of ``rows``."""
    made = []
    for row, own in enumerate(rows):
        amounts = (w[f"{name}.kernel_projection.weight"] @ own).reshape(2, 2, -1)[side]
        now, before = w[f"{name}.base_kernel"][side] + np.repeat(amounts, 4, axis=1)
        made.append(now * x[row] + before * (x[row - 1] if row else 0))
    return made


def everything(row: int, place: int) -> bool:
    return True


def alone(row: int, place: int) -> bool:
    return place <= row


def together(row: int, place: int) -> bool:
    return place >= -6


def together_alone(row: int, place: int) -> bool:
    return -6 <= place <= row


def trailing(row: int, place: int) -> bool:
    return row - place < 6


def trailing_alone(row: int, place: int) -> bool:
    return 0 <= row - place < 6


BOTH = [SLIDING, FULL]
FILES: dict[str, tuple[list[str] | None, dict[str, Any], dict[str, Any], list[Any]]] = {
    "speculators": (BOTH, {}, {}, [together_alone, everything]),
    "two-ways": (BOTH, {}, {"sliding_window_non_causal": True}, [together, everything]),
    "z-lab": (BOTH, {"mask_token_id": 1}, {}, [trailing_alone, everything]),
    "z-lab-two-ways": (BOTH, {"causal": False}, {}, [trailing, everything]),
    "in-order": ([FULL, FULL], {"mask_token_id": 1}, {"is_causal": True}, [alone, alone]),
    "all": ([FULL, FULL], {"use_swa": True, "swa_window_size": 6}, {}, [trailing, trailing]),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_see_what_the_published_masks_let_them_see(name: str, tmp_path: Path) -> None:
    types, own, said, sees = FILES[name]
    head = opened(written(tmp_path, types, own, **said))
    w, random, memory = stored(tmp_path), np.random.default_rng(2), Memory()
    features = random.standard_normal((21, head.enter.inputs["features"])).astype(np.float32)
    tokens = random.integers(0, 40, 21)
    for first, last in ((0, 3), (3, 16), (16, 17), (17, 21)):
        asked = HeadDraft(memory, features[first:last], tokens[first:last], first, 30, 2, 4)
        (tree,) = run_head(head, [asked], apply_network)
        made = block(w, features[:last].astype(np.float64), int(tokens[last - 1]), sees)
        check_paths(
            tree,
            lambda path, made=made: w["verifier_lm_head.weight"] @ made[1 + len(path)],
            least=4,
        )


@pytest.mark.parametrize("run", ["f32", "core", "torch"])
def test_a_selector_chooses_between_the_likeliest_tokens(run: str, tmp_path: Path) -> None:
    random_head("dflash2", CONFIG, tmp_path, seed=4)
    head, runs = opened(tmp_path).held_in("f32"), {"f32": apply_network, "core": run_networks}
    if run == "torch":
        torch = pytest.importorskip("torch")
        from paradecode.backends.torch.network import TorchNetworks

        runs["torch"] = TorchNetworks(torch.device("cpu")).apply
    w, random = stored(tmp_path), np.random.default_rng(2)
    features = random.standard_normal((9, head.enter.inputs["features"])).astype(np.float32)
    tokens = random.integers(0, 40, 9)
    asked = HeadDraft(Memory(), features, tokens, 0, 60, 3, 4)
    other = HeadDraft(Memory(), features[:4], tokens[:4], 0, 60, 3, 4)
    tree, _ = run_head(head, [asked, other], runs[run])
    anchor = int(tokens[-1])
    made = block(w, features.astype(np.float64), anchor, [everything, everything])

    def said(path: list[int]) -> np.ndarray:
        state, name = made[1 + len(path)], "candidate_selector"
        unary = w["verifier_lm_head.weight"] @ state
        before = w[f"{name}.predecessor_codebook"][[anchor, *path][-1]]
        context = before * (w[f"{name}.hidden_projection.weight"] @ state)
        scores = np.full(40, -np.inf)
        best = np.argsort(-unary)[:6]
        scores[best] = unary[best] + w[f"{name}.successor_codebook"][best] @ context
        return scores

    check_paths(tree, said)


def test_a_window_forgets_older_rows(tmp_path: Path) -> None:
    head = opened(written(tmp_path, [SLIDING, SLIDING], {}))
    features = np.ones((200, head.enter.inputs["features"]), np.float32)
    memory = Memory()
    for first in range(0, 200, 10):
        rows = slice(first, first + 10)
        asked = HeadDraft(memory, features[rows], np.zeros(10, np.int64), first, 4, 2, 2)
        run_head(head, [asked], apply_network)
    assert max(each.shape[1] for block in memory._kept for each in block[1:]) < 40


@pytest.mark.wide
@pytest.mark.parametrize("case", ["chunks-of-3", "prefix-cache"])
def test_decoding_with_windows_is_exact(case: str, tmp_path: Path) -> None:
    assert case in CASES
    folder = Path(random_head("dflash", toy_config(context_length=128), tmp_path))
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= {"layer_types": BOTH, "sliding_window": 6}
    (folder / "config.json").write_text(json.dumps(config))
    check(f"dflash(head='{folder}')", kinds=["toy"], only=[case])
