"""Training rows and masks of tiny diffusion models: what the loss sees, and how it is weighed."""

from random import Random

import numpy as np
import pytest

pytest.importorskip("torch")

from paradecode_lab.measure.tasks.task import is_held_out
from paradecode_lab.measure.tasks.tasks import GRADED, TASKS
from paradecode_lab.training.diffusion.data import ROWS_TOGETHER, packs
from paradecode_lab.training.diffusion.model import CONTEXT
from paradecode_lab.training.diffusion.objectives import (
    ATTENTION_BLOCKS,
    TAIL_WEIGHT,
    block_loss,
    diffusion_loss,
    mask,
)
from paradecode_lab.training.diffusion.vocabulary import ASSISTANT, END, MASK, USER, build_tokenizer

TOKENIZER = build_tokenizer()
SHARES = {task.name: 1.0 for task in TASKS}


def made(seed=0, step=0, rows=300, tails=True):
    return list(packs(TOKENIZER, SHARES, seed, step, rows, tails))


def test_rows_are_a_function_of_seed_and_step():
    first, again = made(), made()
    assert all((a.tokens == b.tokens).all() for a, b in zip(first, again, strict=True))
    for other in (made(seed=1), made(step=1)):
        assert any(
            a.tokens.shape != b.tokens.shape or (a.tokens != b.tokens).any()
            for a, b in zip(first, other, strict=True)
        )


@pytest.mark.parametrize("tails", [True, False])
def test_rows_are_prompt_answer_and_ends(tails):
    work = made(tails=tails)
    assert [len(pack.tokens) for pack in work] == [ROWS_TOGETHER] * 9 + [12]
    for pack in work:
        assert pack.tokens.shape[1] <= CONTEXT
        for row, start, end in zip(pack.tokens.tolist(), pack.start, pack.end):
            assert row[0] == USER
            assert row[start - 1] == ASSISTANT
            assert END not in row[: end - 1]
            assert set(row[end - 1 :]) == {END}
            assert not is_held_out(TOKENIZER.decode(row[1 : start - 1]))
        assert tails or pack.end.max() == pack.tokens.shape[1]
    assert tails == any(pack.end.max() < pack.tokens.shape[1] for pack in work)


def test_masks_cover_answers_and_weights_add_up():
    random = np.random.default_rng(0)
    for pack in made():
        count, length = pack.tokens.shape
        levels = (np.arange(count) + 0.5) / count
        masked, weight = mask(pack, levels, random)
        at = np.arange(length)
        answer = (at >= pack.start[:, None]) & (at < pack.end[:, None])
        tail = at >= pack.end[:, None]
        assert not masked[~(answer | tail)].any()
        assert ((weight > 0) == masked).all()
        content = pack.end - pack.start
        assert ((masked & answer).sum(1) == 1 + np.floor(levels * content)).all()
        np.testing.assert_allclose((weight * answer).sum(1), 1, rtol=1e-5)
        tails = (weight * tail).sum(1)
        assert (np.isclose(tails, 0) | np.isclose(tails, TAIL_WEIGHT)).all()


def test_every_token_of_an_answer_is_masked_equally_often():
    pack = made(rows=1, tails=False)[0]
    start, end = pack.start[0], pack.end[0]
    content, draws = end - start, 4000
    random = np.random.default_rng(0)
    plain = np.zeros(content)
    for draw in range(draws):
        masked, _ = mask(pack, np.array([(draw + 0.5) / draws]), random)
        plain += masked[0, start:end]
    # Block-wise rows mask later tokens more often, so over all rows the last tokens lead slightly.
    assert (np.diff(plain) > -0.1 * draws).all()
    assert plain[0] > 0.4 * draws


def test_graded_rows_fit_into_canvas_and_context():
    random = Random(5)
    for task in GRADED:
        for _ in range(500):
            instance = task.draw(random, held_out=False)
            prompt, answer = (
                len(TOKENIZER.encode(text).ids) for text in (instance.prompt, instance.answer)
            )
            assert answer < 64
            assert prompt + 2 + 64 <= CONTEXT


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_blocks_by_the_book(seed, shift):
    """One forward for all blocks must give the loss of forwards that end with each block."""
    import torch
    from diffusion_models import trainer

    model = trainer(shift=shift).model
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2, torch.Generator().manual_seed(seed))
    calls = []
    handle = model.register_forward_hook(lambda _, given, hidden: calls.append(given))
    pack = list(packs(TOKENIZER, {t.name: 1.0 for t in GRADED}, seed, 0, 40, True))[1]
    found = block_loss(model, pack, np.random.default_rng(seed))
    handle.remove()
    ((tokens, positions, _),) = calls
    length = int((positions == positions[-1]).nonzero()[0]) + 1  # Length of the clean copy.
    first = int(positions[length])
    size = int(np.random.default_rng(seed).choice(ATTENTION_BLOCKS))
    assert length % size == first % size == 0
    masked, at = tokens[:, length:] == MASK, torch.arange(first, length)
    start, end = torch.from_numpy(pack.start)[:, None], torch.from_numpy(pack.end)[:, None]
    answer = (at >= start) & (at < -(-end // size) * size)
    assert not masked[~answer].any()
    wanted = 0.0
    for begin in range(first, length, size):
        inside = answer & (at // size == begin // size)
        share = inside.sum(1) / (masked & inside).sum(1) / answer.sum(1)
        assert (masked & inside).any(1).tolist() == inside.any(1).tolist()
        inputs = torch.cat([tokens[:, :begin], tokens[:, length + begin - first :][:, :size]], 1)
        blocks = torch.arange(begin + size) // size
        logits = model.logits(model(inputs, None, blocks[:, None] >= blocks)).log_softmax(-1)
        for row, column in (masked & inside).nonzero().tolist():
            position = first + column
            wanted -= share[row] * logits[row, position - shift, tokens[row, position]]
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shift", [False, True])
def test_the_loss_of_the_whole_canvas_by_the_book(shift):
    import torch
    from diffusion_models import trainer

    model = trainer(shift=shift).model
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2, torch.Generator().manual_seed(1))
    pack = made()[3]
    levels = np.linspace(0, 0.99, len(pack.tokens))
    masked, weight = mask(pack, levels, np.random.default_rng(2))
    inputs = torch.from_numpy(np.where(masked, MASK, pack.tokens))
    logits = model.logits(model(inputs)).log_softmax(-1)
    wanted = -sum(
        float(weight[row, at]) * logits[row, at - shift, pack.tokens[row, at]]
        for row, at in np.argwhere(masked).tolist()
    )
    found = diffusion_loss(model, pack, levels, np.random.default_rng(2))
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
