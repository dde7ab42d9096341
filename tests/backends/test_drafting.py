"""Draft heads and draft models run on another device, or on separate threads."""

import gc
import os
import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import asked
from paradecode import backends
from paradecode.backends.drafting import DraftPlace
from paradecode.backends.heads.run import run_head
from paradecode.backends.interface import RunsHeads, RunsNetworks
from paradecode.backends.native.machine import default_threads
from paradecode.core.decoder import DRAFT
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.head import Array, Head, HeadDraft, Item, Network
from paradecode.core.tree import TokenTree
from paradecode.engine import engine as module
from paradecode.engine.engine import Engine
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.draft_heads import knowing_head, random_head
from paradecode.testing.network_reference import apply_network
from paradecode.testing.toy import ToyBackend, toy_config
from tiny_folder import write_folder

PROMPTS = [[5, 6, 7, 8, 5, 6], [9, 8, 7]]
PLAIN = {"max_tokens": 12, "ignore_eos": True, "seed": 5}
TOY = toy_config(context_length=128)
Trees = list[TokenTree]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunsNetworks, Trees, Trees]]:
    """Record each run of a head: its backend, its trees, and the reference's trees.

    The reference does not see what the core keeps of a request.
    """
    found: list[tuple[RunsNetworks, Trees, Trees]] = []
    run = module.drafts_of

    def seen(place: RunsNetworks, head: Head, drafts: Sequence[HeadDraft]) -> Trees:
        same = [replace(draft, memory=deepcopy(draft.memory)) for draft in drafts]
        wanted = [] if isinstance(place, RunsHeads) else run_head(head, same, apply_network)
        found.append((place, run(place, head, drafts), wanted))
        return found[-1][1]

    monkeypatch.setattr(module, "drafts_of", seen)
    return found


def opened(folder: Path, **given: Any) -> LLM:
    """Open a native target whose heads may draft as much as they want, whatever it costs."""
    pytest.importorskip("paradecode.backends.native._core")
    llm = LLM(write_folder(folder / "model", "llama"), **{"backend": "native", **given})
    llm.engine.load.curve = llm.engine.correction = None
    return llm


def with_head(kind: str, folder: Path) -> str:
    head = random_head(kind, tiny_checkpoint("llama")[0], folder / kind)
    return f"{kind}(head='{head}',budget=fixed)"


def tokens(llm: LLM, decoder: str, **given: Any) -> list[list[int]]:
    made = llm.complete(PROMPTS, decoder=decoder, **{**PLAIN, **given})
    assert [one.error for one in made] == [None] * len(PROMPTS)
    return [one.token_ids for one in made]


@pytest.mark.parametrize("kind", ["dovetail", "eagle", "medusa", "longspec"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_in_torch_drafts_for_a_native_target_what_the_reference_drafts(
    kind: str, temperature: float, tmp_path: Path, ran: list[tuple[RunsNetworks, Trees, Trees]]
) -> None:
    torch = pytest.importorskip("torch")
    with opened(tmp_path, draft_device="cpu") as llm:
        assert llm.backend.name == "native"
        plain = tokens(llm, "greedy", temperature=temperature)
        assert tokens(llm, with_head(kind, tmp_path), temperature=temperature) == plain
    assert len(ran) > 3
    for place, trees, wanted in ran:
        assert place.device == torch.device("cpu")  # type: ignore[attr-defined]
        for tree, other in zip(trees, wanted, strict=True):
            assert len(tree) > 0
            assert tree.tokens.tolist() == other.tokens.tolist()
            assert tree.parents.tolist() == other.parents.tolist()
            assert np.allclose(tree.estimates, other.estimates, atol=1e-4)


@pytest.mark.parametrize("kind", ["dovetail", "longspec"])
def test_a_head_with_threads_of_its_own_drafts_the_same(kind, tmp_path, ran):
    found = []
    for threads in (None, 1, 3):
        ran.clear()
        with opened(tmp_path, draft_threads=threads) as llm:
            # A head takes turns with its target, which keeps all its threads.
            assert llm.backend.threads == default_threads()
            plain, made = tokens(llm, "greedy"), tokens(llm, with_head(kind, tmp_path))
            wanted = threads or default_threads()
            assert {place.threads for place, *_ in ran} == {wanted}  # type: ignore[attr-defined]
        assert made == plain
        drafted = [tree for _, trees, _ in ran for tree in trees]
        assert sum(map(len, drafted)) > 20
        found.append([(tree.tokens.tolist(), tree.parents.tolist(), tree.estimates.tolist())
                      for tree in drafted])  # fmt: skip
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("place", [{"draft_device": "cpu"}, {"draft_threads": 1}])
def test_constrained_outputs_are_the_same(place: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wanted = {"type": "regex", "value": "[a-e]{3}(0|1){4,9}!"}
    with opened(tmp_path, **place) as llm:
        plain = tokens(llm, "greedy", constraint=wanted, ignore_eos=False)
        assert tokens(llm, with_head("dovetail", tmp_path), constraint=wanted,
                      ignore_eos=False) == plain  # fmt: skip


def serve(engine: Engine, specs: Sequence[str]) -> list[LiveSequence]:
    params = {"max_tokens": 60, "ignore_eos": True}
    return asked(engine, *((spec, range(5, 10), params) for spec in specs))


def test_in_a_batch_a_head_that_knows_is_fast_there_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    head = knowing_head(TOY, tmp_path)
    specs = ["greedy", f"eagle(head='{head}')", f"suffix+eagle(head='{head}')"]
    target = ToyBackend(TOY)
    engine = Engine({"target": target}, heads=DraftPlace("cpu").open_heads(target))
    plain, *others = serve(engine, specs)
    for sequence in others:
        assert sequence.error is None
        assert sequence.output == plain.output
        assert sequence.stats.forwards < plain.stats.forwards / 2.5
    engine.close()


@pytest.mark.parametrize(("own", "targets"), [(None, 3), (2, 3), (None, None)])
def test_pytorch_has_the_threads_of_the_target(own, targets, tmp_path):
    """PyTorch gets as many threads as the target; by default it would take all cores."""
    torch = pytest.importorskip("torch")
    place, before = DraftPlace("cpu", own), torch.get_num_threads()
    config, weights = tiny_checkpoint("llama")
    opens = [
        lambda: place.open_heads(ToyBackend(TOY), targets),
        lambda: place.open_model(config, weights, targets, backends.open_backend),
    ]
    try:
        for open_one in opens:
            torch.set_num_threads(7)
            open_one().close()
            assert torch.get_num_threads() == (own or targets or default_threads())
        opened(tmp_path, threads=1, draft_device="cpu").close()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


class Fails:
    """A device that runs a few networks and then fails."""

    def __init__(self, error: BaseException, good: int) -> None:
        self.error, self.good = error, good

    def apply(self, network: Network, items: Sequence[Item]) -> list[Array]:
        self.good -= 1
        if self.good < 0:
            raise self.error
        return apply_network(network, items)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("good", [0, 7, 30])
def test_an_error_of_the_device_ends_its_requests_only(good: int, tmp_path: Path) -> None:
    heads = Fails(RuntimeError("the device has no memory"), good)
    engine = Engine({"target": ToyBackend(TOY)}, heads=heads)
    spec = f"eagle(head='{knowing_head(TOY, tmp_path)}')"
    plain, bad = serve(engine, ["greedy", spec])
    assert plain.error is None
    assert len(plain.output) == 60
    assert bad.finish_reason == "error"
    assert "no memory" in str(bad.error)
    assert bad.output == plain.output[: len(bad.output)]
    heads.good = 10**9  # The device is there again.
    (again,) = serve(engine, [spec])
    assert again.output == plain.output


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux does")
@pytest.mark.parametrize("place", [{"draft_threads": 5}, {"draft_device": "cpu"}])
def test_ctrl_c_and_aborted_requests_leave_no_thread(place, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.ones(64, 64) @ torch.ones(64, 64)  # What PyTorch has of threads, it keeps.
    gc.collect()
    before, threads = tasks(), threading.active_count()
    llm = opened(tmp_path, **place)
    spec = with_head("dovetail", tmp_path)
    plain = tokens(llm, "greedy")
    for chunk in llm.stream(llm.encode(PROMPTS[0]), decoder=spec, **PLAIN):
        assert chunk.token_ids
        break  # Closes the stream, which cancels the request.
    run = module.drafts_of

    def interrupted(*given: Any) -> Trees:
        monkeypatch.setattr(module, "drafts_of", run)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "drafts_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.complete(PROMPTS, decoder=spec, **PLAIN)
    assert not llm.engine.busy
    assert threading.active_count() == threads
    assert tokens(llm, spec) == plain
    llm.close()
    del llm
    gc.collect()
    assert tasks() <= before


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_model_in_torch_beside_a_native_target_changes_no_token(temperature, tmp_path):
    pytest.importorskip("torch")
    other = write_folder(tmp_path / "d", "llama", rope_theta=500.0)
    with opened(tmp_path, draft_model=other, draft_device="cpu", draft_threads=1) as llm:
        assert [one.name for one in llm.engine.models.values()] == ["native", "torch-cpu-fp32"]
        assert llm.engine.apart
        assert llm.backend.threads == max(1, default_threads() - 1)
        plain = tokens(llm, "greedy", temperature=temperature)
        for spec in ("draft-model(budget=fixed)", "pearl", "mirror-sd"):
            assert tokens(llm, spec, temperature=temperature) == plain
        assert llm.engine.load.others.keys() == {DRAFT}


@pytest.mark.parametrize("device", ["gpu", "tpu:0", "cuda:x", "", "meta", "cpu:"])
def test_an_unknown_device_is_named_before_a_model_is_loaded(device: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match="use cpu, cuda or cuda:N") as error:
        LLM("there-is-no-such-model", draft_device=device)
    assert error.value.field == "draft_device"
    assert error.value.value == device


@pytest.mark.parametrize(("count", "given", "field", "said"), [
    (0, {"draft_device": "cuda"}, "draft_device", "use cpu: torch sees no CUDA device here"),
    (2, {"draft_device": "cuda:2"}, "draft_device", "use cuda:0 to cuda:1"),
    (2, {"draft_device": "cuda:1", "draft_threads": 1}, "draft_threads", "runs on cuda:1"),
    (0, {"draft_threads": 0}, "draft_threads", "1 to 1024"),
    (0, {"draft_device": "cpu", "draft_threads": 2000}, "draft_threads", "1 to 1024"),
])  # fmt: skip
def test_places_that_are_not_there_are_refused(count, given, field, said, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(InvalidInput, match=said) as error:
        LLM("there-is-no-such-model", **given)
    assert error.value.field == field


def test_without_torch_a_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install -e '\.\[torch\]'"):
        LLM("there-is-no-such-model", draft_device="cpu")


@pytest.mark.parametrize(("given", "field"), [
    ({"draft_device": "cpu"}, "draft_device"), ({"draft_threads": 1}, "draft_threads"),
])  # fmt: skip
def test_a_target_in_torch_leaves_the_cores_to_no_other(given, field, tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match="leave it out") as error:
        opened(tmp_path, backend="torch", **given)
    assert error.value.field == field


@pytest.mark.parametrize("name", ["device", "draft_device", "draft_threads"])
def test_no_request_names_a_device(name: str, tmp_path: Path) -> None:
    for trusted in (True, False):
        with pytest.raises(InvalidInput, match=name):
            parse({"method": "dovetail", name: "cuda:0"}, trusted=trusted)
    with opened(tmp_path) as llm, pytest.raises(InvalidInput, match=name):
        llm.complete(PROMPTS, decoder="greedy", **{name: "cuda:0"})
