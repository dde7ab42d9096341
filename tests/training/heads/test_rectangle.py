"""A rectangle of many texts must give what the engine writes and reads, and what heads see."""

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from head_training import MODEL

from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Limits
from paradecode.llm import LLM
from paradecode_lab.training.heads.answers import EngineWriter
from paradecode_lab.training.heads.data import writer_of
from paradecode_lab.training.heads.network import attend_each, attend_rectangle
from paradecode_lab.training.heads.rectangle import RectangleWriter, _drawn, _parts

pytestmark = pytest.mark.usefixtures("one_thread")
GREEDY = SamplingParams(max_tokens=40)


@pytest.fixture(scope="module")
def on_torch() -> Iterator[LLM]:
    limits = Limits(prefix_cache=False)
    with LLM(MODEL, backend="torch", dtype="fp32", threads=1, limits=limits) as llm:
        yield llm


def prompts_of(llm: LLM) -> list[list[int]]:
    """Return prompts of different lengths; the answers to some of them end soon."""
    said = ["What is 3 plus 4?", "A", "Write the numbers from one to ten, one a line, please.",
            'Give JSON with a name and an age: "Ann", 31.']  # fmt: skip
    return [llm.chat_tokens([{"role": "user", "content": text}]) for text in said * 2]


def test_answers_and_states_are_those_of_the_engine(on_torch, monkeypatch):
    import paradecode_lab.training.heads.rectangle as place

    monkeypatch.setattr(place, "READ", 100)  # So that prompts are read in several parts,
    monkeypatch.setattr(place, "LOOK", 3)  # and ended texts leave soon.
    prompts, layers = prompts_of(on_torch), (0, on_torch.config.layers - 1)
    assert len([*place._parts(prompts)]) > 1
    writer = writer_of(on_torch)
    assert isinstance(writer, RectangleWriter)
    made = writer.answers(prompts, GREEDY, layers)
    wanted = EngineWriter(on_torch).answers(prompts, GREEDY, layers)
    assert len({len(answer.tokens) for answer in wanted}) > 2
    for ours, theirs in zip(made, wanted, strict=True):
        assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
        assert ours.states.dtype == np.float16
        np.testing.assert_allclose(ours.states, theirs.states, atol=2e-2, rtol=2e-2)
    bare = writer.answers(prompts, GREEDY, ())
    assert [each.tokens for each in bare] == [each.tokens for each in wanted]
    assert writer.answers([], GREEDY, layers) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_writes_the_same_with_and_without_graphs(on_torch, monkeypatch):
    limits = Limits(prefix_cache=False)
    prompts, layers = prompts_of(on_torch), (0, on_torch.config.layers - 1)
    with LLM(MODEL, backend="torch", device="cuda", dtype="fp32", limits=limits) as llm:
        with_graphs = writer_of(llm).answers(prompts, GREEDY, layers)
        monkeypatch.setattr("paradecode_lab.training.heads.rectangle.GRAPHS", ())
        without = writer_of(llm).answers(prompts, GREEDY, layers)
    assert [each.tokens for each in with_graphs] == [each.tokens for each in without]
    for one, other in zip(with_graphs, without, strict=True):
        np.testing.assert_allclose(one.states, other.states, atol=2e-2, rtol=2e-2)


def test_states_of_texts_are_those_of_the_engine(on_torch):
    texts, layers = prompts_of(on_torch), (1, 3)
    ours, theirs = (w.states(texts, layers) for w in (writer_of(on_torch), EngineWriter(on_torch)))
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=2e-2, rtol=2e-2)


def test_a_round_of_questions_differs_and_comes_again(on_torch):
    writer = RectangleWriter(on_torch, on_torch.backend.model, together=6)
    asked = writer.questions(0, 3)
    assert len(asked) == 6
    assert len({text for text, _ in asked}) > 1
    assert asked == writer.questions(0, 3)
    assert asked != writer.questions(1, 3)
    text, ids = asked[0]
    assert ids == on_torch.chat_tokens([{"role": "user", "content": text}])


def test_sampled_tokens_have_their_chances_within_top_p():
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = chances.log().expand(20000, -1)
    draw = torch.Generator().manual_seed(0)
    for top_p, kept in ((1.0, 4), (0.8, 2), (0.81, 3)):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        share = torch.bincount(_drawn(logits, params, draw), minlength=4) / len(logits)
        wanted = torch.where(torch.arange(4) < kept, chances, 0)
        assert (share - wanted / wanted.sum()).abs().max() < 0.02
    halved = _drawn(logits, SamplingParams(temperature=0.5), draw)
    assert (halved == 0).float().mean() == pytest.approx(0.25 / 0.365, abs=0.02)


def test_parts_are_of_similar_lengths_and_name_each_text_once(monkeypatch):
    monkeypatch.setattr("paradecode_lab.training.heads.rectangle.READ", 20)
    texts = [[0] * n for n in (3, 9, 1, 30, 8, 2)]
    assert [*_parts(texts)] == [[2, 5, 0], [4, 1], [3]]


def test_texts_together_attend_as_one_by_one():
    """Attention over all texts at once must equal attention text by text, also in its gradients.

    One text has no queries.
    """
    draw = torch.Generator().manual_seed(1)
    counts, sizes, begins = [9, 5, 7], [6, 0, 4], [3, 2, 1]

    def normal(n: int, heads: int):
        return torch.randn(n, heads, 8, generator=draw)

    q = normal(sum(sizes), 4).requires_grad_()
    levels = [counts, [7, 1, 4], sizes]
    keys = [(normal(sum(some), 2), normal(sum(some), 2), some) for some in levels]
    one, together = (f(q, sizes, begins, keys) for f in (attend_each, attend_rectangle))
    assert torch.allclose(one, together, atol=1e-5)
    gradients = [torch.autograd.grad(each.square().sum(), q)[0] for each in (one, together)]
    assert torch.allclose(*gradients, atol=1e-4)
    later = [(keys[0][0], keys[0][1] + 1, counts), *keys[1:]]
    assert not torch.allclose(attend_rectangle(q, sizes, begins, later), together)
