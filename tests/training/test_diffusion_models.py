"""The dense model and its sampler must agree with the backends and with saved folders."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from diffusion_models import CPU, trainer

from paradecode.backends import open_backend
from paradecode.backends.interface import PAGE, Span
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.models.safetensors_dir import read_folder
from paradecode_lab.measure.tasks.tasks import BY_NAME, TASKS
from paradecode_lab.training.diffusion.evaluation import (
    answers,
    continue_text,
    decoder_of,
    exact_match,
    fill,
)
from paradecode_lab.training.diffusion.training import MODEL, OBJECTIVES, TinyTraining
from paradecode_lab.training.diffusion.vocabulary import END, MASK

TOKENS = np.array([3, 270, 9, MASK, 300, MASK, 0, 51, 4], np.int32)


KINDS = {
    "diffusion": {"objective": "diffusion", "shift": True},
    "autoregressive": {"objective": "autoregressive"},
    "hybrid": {"objective": "autoregressive", "states": (0,), "heads": 2},
}
assert {kind["objective"] for kind in KINDS.values()} == set(OBJECTIVES)


def trained(kind: str):
    """Return a model that was trained for a few steps, so that no weight is 0."""
    made = trainer(**{"hidden_size": 64, "heads": 1} | KINDS[kind])
    for _ in range(6):
        made.advance()
    return made


@pytest.fixture(scope="module", params=KINDS)
def learner(request: pytest.FixtureRequest):
    return trained(request.param)


def rounded(learner: TinyTraining):
    """Return the dense model with the weights that are saved."""
    made = TinyTraining(learner.plan, CPU).average
    made.load_state_dict({k: v.half() for k, v in learner.average.state_dict().items()})
    return made


def whole(backend, full: bool) -> np.ndarray:
    """Return the log-probabilities [N, V] of TOKENS in one forward."""
    count = np.arange(len(TOKENS), dtype=np.int32)
    mask = np.ones((len(TOKENS), len(TOKENS)), bool) if full else None
    backend.reserve(1)
    if backend.config.keeps_states:
        backend.reserve_states(1, 1)
    pages = np.zeros(1, np.int32)
    assert len(TOKENS) <= PAGE
    span = Span(pages, TOKENS, count, np.full_like(count, -1), 0, count, mask=mask)
    logits = backend.forward([span])[0].logits
    return logits.log_probability(np.tile(np.arange(552), (len(TOKENS), 1)))


@pytest.mark.parametrize("name", ["torch", "native"])
def test_saved_folders_load_and_agree_with_the_dense_model(learner, name, tmp_path):
    if name == "native":
        pytest.importorskip("paradecode.backends.native._core")
    learner.export(tmp_path)
    checkpoint = read_folder(tmp_path / MODEL)
    full = learner.plan.objective == "diffusion"
    assert checkpoint.config.attention == ("full" if full else "causal")
    assert checkpoint.config.mask_token == (MASK if full else None)
    assert checkpoint.config.shift == full
    assert checkpoint.config.eos_tokens == (END,)
    tokens = torch.from_numpy(TOKENS[None]).long()
    dense = rounded(learner)
    with torch.inference_mode():
        wanted = dense.logits(dense(tokens))[0].log_softmax(-1).numpy()
    backend = open_backend(name, checkpoint.config, checkpoint.weights, dtype="auto", threads=1)
    np.testing.assert_allclose(
        whole(backend, full), wanted, atol=2e-3 if name == "native" else 1e-5
    )


def test_a_hybrid_is_granites_over_several_pages(tmp_path: Path):
    """transformers reads the folder, and the core decodes it as the dense model does."""
    transformers = pytest.importorskip("transformers")
    learner = trained("hybrid")
    learner.export(tmp_path)
    dense, random = rounded(learner), np.random.default_rng(0)
    tokens = torch.from_numpy(random.integers(5, 552, (1, 40)))
    granite = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / MODEL).float().eval()
    with torch.inference_mode():
        wanted = dense.logits(dense(tokens))
        torch.testing.assert_close(granite(tokens).logits, wanted, atol=1e-4, rtol=0)
    with LLM(tmp_path / MODEL, dtype="f32", threads=1) as llm:
        made = llm.complete([tokens[0].tolist()], temperature=0, max_tokens=40, ignore_eos=True)
    assert made[0].token_ids == continue_text(dense, tokens, 40)[0].tolist()


@pytest.mark.parametrize("shift", [False, True])
def test_static_decoding_is_the_plain_rule(shift):
    """Static decoding equals a loop over single rows that computes all from the definition."""
    model = trainer(hidden_size=64, heads=1, shift=shift).average
    torch.nn.init.normal_(model.embed.weight, 0, 1, torch.Generator().manual_seed(1))
    prompts = torch.tensor([[3, 270, 4], [3, 281, 4]])
    for block, order in ((0, "confidence"), (4, "confidence"), (8, "left"), (3, "confidence")):
        wanted = []
        for prompt in prompts.tolist():
            canvas = [*prompt, *[MASK] * 8]
            while MASK in canvas:
                logits = model.logits(model(torch.tensor([canvas])))[0].detach()
                logits = logits.roll(int(shift), 0)
                logits[:, MASK] = -torch.inf
                p = logits.softmax(-1)
                free = [i for i, token in enumerate(canvas) if token == MASK]
                free = [i for i in free if (i - 3) // (block or 8) == (free[0] - 3) // (block or 8)]
                best = free[0] if order == "left" else max(free, key=lambda i: float(p[i].max()))
                canvas[best] = int(p[best].argmax())
            wanted.append(canvas[3:])
        assert fill(model, prompts, 8, block, order).tolist() == wanted


def test_greedy_decoding_and_its_early_stop():
    model = trainer(objective="autoregressive", hidden_size=64, heads=1).average
    torch.nn.init.normal_(model.embed.weight, 0, 1, torch.Generator().manual_seed(1))
    tokens = [3, 270, 4]
    for _ in range(6):
        tokens.append(int(model.logits(model(torch.tensor([tokens])))[0, -1].argmax()))
    assert continue_text(model, torch.tensor([[3, 270, 4]]), 6).tolist() == [tokens[3:]]
    torch.nn.init.zeros_(model.embed.weight)  # Every logit equal: the lowest id, which is END.
    assert continue_text(model, torch.tensor([[3, 270, 4]]), 6).tolist() == [[END]]


def test_an_unknown_order_is_refused():
    with pytest.raises(InvalidInput, match="order"):
        fill(trainer().average, torch.tensor([[3, 4]]), 4, order="best")


def test_exact_match_counts_right_answers():
    learner = trainer()
    by_prompt = {}
    for task in TASKS:
        for instance in task.held_out(6):
            ids = learner.tokenizer.encode(instance.prompt).ids
            by_prompt[tuple(ids)] = learner.tokenizer.encode(instance.answer).ids

    def oracle(prompts, length):
        rows = [[*by_prompt[tuple(row[1:-1])], END] for row in prompts.tolist()]
        assert all(len(row) <= length for row in rows)
        return torch.tensor([row + [END] * (length - len(row)) for row in rows])

    shares = exact_match(oracle, learner.tokenizer, TASKS, 6, CPU)
    assert {name: share.value for name, share in shares.items()} == dict.fromkeys(shares, 1.0)
    assert all(0.5 < share.low < share.high == 1.0 for share in shares.values())
    wrong = exact_match(lambda p, n: torch.full((len(p), n), 51), learner.tokenizer, TASKS, 6, CPU)
    assert {share.value for share in wrong.values()} == {0.0}


def test_answers_keep_their_order():
    learner = trainer()
    instances = [BY_NAME[name].held_out(3)[i] for i in range(3) for name in ("copy", "json")]

    def echo(prompts, length):
        return torch.cat([prompts[:, 1:-1], torch.full((len(prompts), 1), END)], 1)

    texts = answers(echo, learner.tokenizer, instances, CPU)
    assert texts == [instance.prompt for instance in instances]
    assert answers(decoder_of(learner.average), learner.tokenizer, instances[:1], CPU) is not None
