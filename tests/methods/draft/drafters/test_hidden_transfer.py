"""Tests of Hidden Transfer against a plain implementation without cache and tree."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import PROMPT, deep, head_engine, serve

from paradecode.backends import open_backend
from paradecode.backends.interface import Span
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidModel
from paradecode.core.sampling import SamplingParams
from paradecode.engine.cost import CostCurve
from paradecode.engine.request import GenerationRequest
from paradecode.methods.draft import row_drafter
from paradecode.methods.draft.drafters import prompt_rows
from paradecode.methods.specs import parse
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import random_head

LAYERS, WIDTH = 6, 4
CONFIG, WEIGHTS = deep(LAYERS)
engine = partial(head_engine, (CONFIG, WEIGHTS))
NONE = np.empty(0, np.int32)


def write(folder: Path, enters: Sequence[int], seed: int = 5) -> Path:
    """Write matrices that keep half of a state, so that some guesses are right."""
    random, d = np.random.default_rng(seed), CONFIG.hidden_size
    tensors = {
        f"transfer.{level}.weight": (
            0.5 * np.eye(d) + random.standard_normal((d, d)) / np.sqrt(d)
        ).astype(np.float32)
        for level in range(len(enters))
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"transfer_layers": list(enters)}))
    return folder


class Paper:
    """Rows s_1, ..., s_k after the last row of a text, each of which enters its own layer."""

    def __init__(self, folder: Path) -> None:
        self.enters = json.loads((folder / "config.json").read_text())["transfer_layers"]
        self.matrices = load_file(folder / "model.safetensors")
        self.backend: Any = open_backend("torch", CONFIG, WEIGHTS, dtype="fp64", threads=1)
        self.backend.reserve(1)

    def guesses(self, known: np.ndarray) -> list[list[int]]:
        states, logits = WEIGHTS["embed"].float32()[known].astype(np.float64), None
        for layer in range(LAYERS):
            for level, enters in enumerate(self.enters):
                if enters == layer:
                    made = self.matrices[f"transfer.{level}.weight"] @ states[len(known) - 1]
                    states = np.concatenate([states, made[None]])
            at = np.arange(len(states), dtype=np.int32)
            # The text comes first and is causal, so it does not attend to the rows after it.
            span = Span(NONE, at, at, np.full(len(at), -1, np.int32), 0, at[len(known) :],
                        hidden=(layer,), layers=(layer,), resume=states)  # fmt: skip
            (done,) = self.backend.forward([span])
            states, logits = done.hidden[layer], done.logits
        return logits.top_k(WIDTH)[0].tolist()


@pytest.mark.parametrize("enters", [(3, 3, 3), (2, 4, 5), (1, 1, 4, 4)])
def test_every_draft_is_made_of_the_papers_guesses(enters: tuple[int, ...], tmp_path: Path) -> None:
    """A draft holds the guesses after the last accepted token, whatever was drafted before it."""
    paper = Paper(write(tmp_path, enters))
    spec = f"hidden-transfer(head='{tmp_path}',width={WIDTH},budget=fixed)"
    (sequence,) = serve(engine(), [spec], ignore_eos=True, max_tokens=40)
    text, deep_ones = list(PROMPT), 0
    for number, step in enumerate(sequence.trace):
        tree = step.tree
        assert (tree.tokens >= 0).all()  # Pseudo rows are no draft.
        # Behind the prompt there are no rows yet.
        assert (len(tree) > 0) == (number > 1 and len(text) < len(PROMPT) + 39)
        if len(tree):
            wanted = paper.guesses(np.array(text[:-1]))
            for parent in {-1, *tree.parents.tolist()}:
                children = [int(tree.tokens[child]) for child in tree.children(parent)]
                level = 0 if parent < 0 else int(tree.depths[parent])
                assert children == wanted[level][: len(children)]
            deep_ones += int(tree.depths.max()) > 1
        text += step.tokens
    assert deep_ones > 5
    assert max(step.accepted for step in sequence.trace) > 0


def test_a_fusion_with_a_head_that_reads_early_layers_is_plain(tmp_path, head_drafts):
    """A head gets its states although the verification runs in several forwards."""
    eagle = random_head("eagle3", CONFIG, tmp_path / "eagle")
    spec = f"eagle(head='{eagle}')+hidden-transfer(head='{write(tmp_path / 'own', (2, 4))}')"
    params: dict[str, Any] = {"ignore_eos": True, "max_tokens": 24}
    (plain,), (fused,) = (serve(engine(), [each], **params) for each in ("greedy", spec))
    assert fused.output == plain.output
    # Rows of the prompt and, as the text grows, those of verifications with transferred rows.
    assert sum(len(draft.tokens) for draft in head_drafts) > fused.prompt_length
    assert len(head_drafts) > 3


def test_rows_enter_only_where_they_pay(tmp_path: Path) -> None:
    """Rows are added by their measured cost; rows that pass few layers cost less."""
    rows = []
    for dear, enters in ((1.05, (1, 1)), (33.0, (1, 1)), (4.0, (1, 1)), (4.0, (5, 5))):
        folder = write(tmp_path / f"{dear}-{enters[0]}", enters)
        eng = engine(curve=CostCurve((1, 32), (64,), ((1.0, dear),)))
        (one,) = serve(eng, [f"hidden-transfer(head='{folder}')"], ignore_eos=True)
        rows.append(one.stats.rows - len(PROMPT) - one.stats.generated)
    assert rows[0] > 40
    assert rows[1] < 12
    assert rows[3] > rows[2]
    # A step takes a microsecond, and a second forward far more.
    eng = engine(curve=CostCurve((1, 32), (64,), ((1e-6, 1.05e-6),)))
    (one,) = serve(eng, [f"hidden-transfer(head='{folder}')"], ignore_eos=True)
    assert one.stats.rows - len(PROMPT) - one.stats.generated < 40 < rows[0]


@pytest.mark.first(2)
@pytest.mark.parametrize("stalled", [None, 4, 6, 9, 30])
def test_a_stall_of_the_machine_is_no_cost(stalled: int | None, tmp_path: Path, monkeypatch):
    """Neither a request's slow first verification nor a stall counts as the rows' cost.

    A verification in two forwards takes 14 ms, and a step 10 ms.
    """
    folder, now, calls = write(tmp_path, (2, 4)), [0.0], [0]
    monkeypatch.setattr("paradecode.methods.draft.drafters.prompt_rows.perf_counter",
                        lambda: now[0])  # fmt: skip
    eng = engine(curve=CostCurve((1, 64), (64,), ((0.01, 0.0100001),)))
    forward = eng.models[TARGET].forward

    def timed(spans):
        calls[0] += 1
        now[0] += {stalled: 60.0, 2: 1.0}.get(calls[0], 0.14 / 30)
        return forward(spans)

    eng.models[TARGET].forward = timed
    spec = f"hidden-transfer(head='{folder}',budget=fixed)"
    (one,) = serve(eng, [spec], ignore_eos=True, max_tokens=48)
    assert 0.003 < one.head(str(folder)).pace.draft < 0.0045
    assert calls[0] > 40


def test_the_seconds_of_neighbours_are_no_cost(tmp_path: Path, monkeypatch) -> None:
    """Other requests' forwards between a verification's two forwards do not count as its cost."""
    folder, now = write(tmp_path, (2, 4)), [0.0]
    monkeypatch.setattr("paradecode.methods.draft.drafters.prompt_rows.perf_counter",
                        lambda: now[0])  # fmt: skip
    eng = engine(curve=CostCurve((1, 64), (64,), ((0.01, 0.0100001),)))
    forward = eng.models[TARGET].forward

    def timed(spans):
        now[0] += 5.0
        return forward(spans)

    eng.models[TARGET].forward = timed
    prompt = np.array(PROMPT, np.int32)
    longer = SamplingParams(max_tokens=100, ignore_eos=True)  # One row a step, so it takes longest.
    eng.add(GenerationRequest(prompt, parse("greedy"), longer))
    spec = f"hidden-transfer(head='{folder}',budget=fixed)"
    one, *_ = serve(eng, [spec], ignore_eos=True, max_tokens=24)
    assert one.stats.drafted > 0
    fresh = build_head(read_head(folder), CONFIG, {}.__getitem__)
    assert one.head(str(folder)).pace.draft == fresh.pace.draft


def test_rows_guess_no_token_behind_the_end(tmp_path: Path, monkeypatch) -> None:
    """No row guesses a token after the end of the output.

    Row k below a node of depth d guesses position d + 1 + k.
    """
    seen: list[tuple[int, list[int], list[int], int]] = []

    def watched(seq, forward, *rest):
        counts, depths = paying(seq, forward, *rest), forward.tree.depths.tolist()
        seen.append((seq.room, depths, counts.tolist(), seq.scratch - len(depths)))
        return counts

    paying = row_drafter.paying
    monkeypatch.setattr(row_drafter, "paying", watched)
    spec = f"hidden-transfer(head='{write(tmp_path, (2, 4, 4))}',num_speculative_tokens=2)"
    serve(engine(), [spec.replace(")", ",budget=fixed)")], ignore_eos=True, max_tokens=16)
    cut = 0
    for room, depths, counts, free in seen:
        wanted = [sum(d + 1 + k <= room - 1 for k in (1, 2, 3)) for d in (0, *depths)]
        assert all(count <= most for count, most in zip(counts, wanted))
        if sum(wanted) <= free:
            assert counts == wanted
            cut += 0 < sum(wanted) < 3 * len(wanted)
    assert cut > 0


@pytest.mark.parametrize("layers", [
    None, [], [0, 1, 2], [1, 2, LAYERS], [2, 1, 3], [1.0, 2, 3], ["1", 2, 3], [True, 2, 3], 3,
    [1] * 17, [1, 2, 1 << 40],
])  # fmt: skip
def test_layers_that_rows_cannot_enter_are_refused(layers: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, (1, 2, 3))
    (folder / "config.json").write_text(json.dumps({"transfer_layers": layers}))
    with pytest.raises(InvalidModel, match="transfer_layers"):
        build_head(read_head(folder), CONFIG, {}.__getitem__)


@pytest.mark.parametrize(("change", "field"), [
    (lambda t: t.pop("transfer.1.weight"), "transfer.1.weight"),
    (lambda t: t.update({"transfer.1.weight": t["transfer.1.weight"][:-1].copy()}),
     "transfer.1.weight"),
    (lambda t: t.update({"transfer.2.weight": t["transfer.1.weight"]}), "transfer.2.weight"),
    (lambda t: t.update({"transfer.0.bias": t["transfer.1.weight"][0].copy()}), "transfer.0.bias"),
    (lambda t: t["transfer.0.weight"].fill(np.nan), "transfer.0.weight"),
])  # fmt: skip
def test_damaged_matrices_are_named(change: Any, field: str, tmp_path: Path) -> None:
    folder = write(tmp_path, (1, 2))
    tensors = {
        name: values.copy() for name, values in load_file(folder / "model.safetensors").items()
    }
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidModel, match=field):
        build_head(read_head(folder), CONFIG, {}.__getitem__)


@pytest.mark.parametrize("size", [1e10, 3e37, 3e38])
@pytest.mark.parametrize(
    ("backend", "unchecked"), [("torch", False), ("native", False), ("native", True)]
)
def test_numbers_that_overflow_make_bad_drafts_and_no_errors(
    backend: str, size: float, unchecked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that overflow to NaN cause no error, and do not spread to other rows."""
    if unchecked:
        monkeypatch.setattr(prompt_rows, "_sound", lambda rows: rows)
    folder, d = write(tmp_path / "own", (2, 4, 4)), CONFIG.hidden_size
    random = np.random.default_rng(6)
    tensors = {f"transfer.{level}.weight": random.choice([-size, size], (d, d)).astype(np.float32)
               for level in range(3)}  # fmt: skip
    save_file(tensors, folder / "model.safetensors")
    specs = [f"hidden-transfer(head='{folder}',budget=fixed)", "greedy"]
    params: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12}
    (plain,) = serve(engine(backend), ["greedy"], **params)
    both = serve(engine(backend), specs, **params)
    assert [one.output for one in both] == [plain.output] * 2
    assert both[0].stats.rows > 24
