"""Tests of methods with draft heads: exact with any weights, and fast with good ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import check_plain, check_written, deep, head_engine

from engines import served
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head, HeadDraft
from paradecode.core.tree import TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.head_drafter import PastStates, TextStates
from paradecode.methods.specs import parse
from paradecode.testing.cases import CASES
from paradecode.testing.conformance import check
from paradecode.testing.draft_heads import KINDS, knowing_head, random_head
from paradecode.testing.machines import KINDS as MACHINES
from paradecode.testing.machines import checkpoint
from paradecode.testing.toy import ToyBackend, toy_config
from tiers import turning

METHOD = {"eagle3": "eagle", "dflash2": "dflash", "medusa-own": "medusa", "clover-2": "clover"}
TOY = toy_config(context_length=128)
FEW = ("chunks-of-3", "context-end", "mixed-methods", "prefix-cache", "cancelled-neighbour")
"""Cases in which a head's memory of the text may disagree with the text.

Transformers get the first two. The toy model, on which every mistake shows, gets all.
"""

ALL = ("eagle",)
"""Heads that get every case in the fast tests: level by level, with memory and cache."""
ROWS = ("ppd", "hidden-transfer")
"""Heads whose guesses are rows of the target."""
EVERY = (*KINDS, *ROWS)
EXACT = [
    each
    for turn, kind in enumerate(EVERY)
    for each in turning([(kind, case) for case in (CASES if kind in ALL else FEW)], turn, 1)
]
"""Pairs of a head's kind and a case."""
DEEP = deep(4)


@pytest.mark.parametrize("each", EXACT, ids="-".join)
def test_random_heads_are_exact(each: tuple[str, str], tmp_path: Path) -> None:
    kind, case = each
    folder = random_head(kind, TOY, tmp_path)
    check(f"{METHOD.get(kind, kind)}(head='{folder}')", kinds=["toy"], only=[case])


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*EVERY} - {*ALL}))
def test_random_heads_are_exact_in_every_case(kind: str, tmp_path: Path) -> None:
    folder = random_head(kind, TOY, tmp_path)
    check(f"{METHOD.get(kind, kind)}(head='{folder}')", kinds=["toy"])


@pytest.mark.first(2)
@pytest.mark.parametrize("only", [FEW[:2], pytest.param(FEW[2:], marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", EVERY)
def test_random_heads_are_exact_on_a_transformer(kind, only, tmp_path):
    machine = next(each for each in MACHINES if each.name == "qwen3-near-tie")
    folder = random_head(kind, checkpoint(machine)[0], tmp_path)
    check(f"{METHOD.get(kind, kind)}(head='{folder}')", kinds=[machine.name], only=only)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("curve", [None, CostCurve((1, 32), (64,), ((1.0, 1.2),))])
@pytest.mark.parametrize("name", ["torch", "native"])
@pytest.mark.parametrize("kind", [*ROWS, "kangaroo", "m2r2"])
def test_heads_within_the_target_are_exact_in_company(kind, name, curve, temperature, tmp_path):
    """Outputs are exact under several budgets, in a fusion with a lookup, and in a batch."""
    head, other = (random_head(each, DEEP[0], tmp_path / each) for each in (kind, "medusa"))
    specs = [
        f"{kind}(head='{head}',{rest})"
        for rest in ("budget=fixed", "width=2,num_speculative_tokens=3", "verifier=coupled")
    ]
    specs += [f"suffix+{specs[0]}", f"medusa(head='{other}')"]
    check_plain(partial(head_engine, DEEP, name, curve), specs, temperature=temperature)


@pytest.mark.parametrize("kind", [*ROWS, "kangaroo", "m2r2"])
def test_a_folder_that_was_read_and_written_drafts_the_same(kind: str, tmp_path: Path) -> None:
    folder, config = random_head(kind, DEEP[0], tmp_path / "own"), DEEP[0]
    sizes = {"hidden_size": config.hidden_size, "vocab_size": config.vocab_size}
    spec = kind + "(head='{}',budget=fixed)"
    check_written(folder, tmp_path / "again", partial(head_engine, DEEP), spec, sizes)


@pytest.mark.parametrize("kind", EVERY)
def test_a_head_runs_under_its_own_method_only(kind: str, tmp_path: Path) -> None:
    own = METHOD.get(kind, kind)
    strange = "medusa" if own == "eagle" else "eagle"
    for method, head in ((strange, kind), (own, strange)):
        folder = random_head(head, TOY, tmp_path / f"{method}-{head}")
        with pytest.raises(InvalidInput, match=r"own method|is not usable"):
            serve([f"{method}(head='{folder}')"])


@pytest.mark.first(1)
@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
@pytest.mark.parametrize("kind", ["eagle", *ROWS])
def test_other_verifiers_take_their_trees_as_they_stand(kind, verifier, tmp_path):
    folder = random_head(kind, TOY, tmp_path)
    check(f"{kind}(head='{folder}',verifier={verifier})", kinds=["toy"], only=FEW)


def serve(specs, curve=False, prompt=(5, 6, 7, 12, 13), **params):
    engine = Engine({"target": ToyBackend(TOY)}, Limits())
    if curve:
        engine.load.curve = CostCurve((1, 32), (64,), ((1.0, 1.5),))
    settings = {"max_tokens": 90, "ignore_eos": True, "seed": 1, **params}
    return served(engine, [(spec, prompt, settings) for spec in specs])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("curve", [False, True])
def test_a_head_that_knows_is_fast_in_a_batch_too(temperature, curve, tmp_path):
    head = knowing_head(TOY, tmp_path)
    specs = [
        "greedy", f"eagle(head='{head}')", f"suffix+eagle(head='{head}')", f"eagle(head='{head}')",
    ]  # fmt: skip
    plain, *others = serve(specs, curve, temperature=temperature)
    for sequence in others:
        assert sequence.output == plain.output
        assert sequence.stats.forwards < plain.stats.forwards / 2.5
        assert sequence.stats.other_model_seconds > 0
    assert plain.stats.other_model_seconds == 0


def test_a_fusion_copies_first(tmp_path: Path, head_drafts: list[HeadDraft]) -> None:
    """A fusion drafts by copying where the text repeats, and does not run the head there."""
    head, drafts = knowing_head(TOY, tmp_path), {}
    for spec in (f"eagle(head='{head}')", f"suffix+eagle(head='{head}')"):
        head_drafts.clear()
        serve([spec])
        drafts[spec] = len(head_drafts)
    alone, fused = drafts.values()
    assert 0 < fused < alone


@pytest.mark.parametrize("spec", ["eagle", "suffix+eagle"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_row_of_the_text_goes_in_once_with_the_token_behind_it(
    spec: str, temperature: float, tmp_path: Path, head_drafts: list[HeadDraft]
) -> None:
    """The head reads each row of the text once, with the next token, whatever was drafted."""
    head = knowing_head(TOY, tmp_path)
    prompt = [5, 6, 7, 8, 9] * 4
    (sequence,) = serve([f"{spec}(head='{head}')"], prompt=prompt, temperature=temperature)
    text = sequence.tokens.tolist()
    end = 0
    for draft in head_drafts:
        assert draft.start == end
        end += len(draft.tokens)
        assert draft.features[:, -1].tolist() == text[draft.start : end]
        assert draft.tokens.tolist() == text[draft.start + 1 : end + 1]
    assert len(head_drafts) > 3
    assert end > len(prompt)


def test_a_cached_prompt_is_read_as_if_it_were_not(tmp_path, head_drafts):
    """A head that reads a cached prompt gets the states that an earlier request has stored."""
    spec = f"eagle(head='{knowing_head(TOY, tmp_path)}')"
    settings = {"max_tokens": 12, "ignore_eos": True}

    def made(engine, prompt, decoder=spec, salt=""):
        head_drafts.clear()
        return served(engine, [(decoder, prompt, settings)], salt=salt)[0]

    def rows(sequence: LiveSequence) -> list[tuple[int, list[int], list[list[float]]]]:
        """Return what the head was given: each draft's first position, tokens and states."""
        return [(d.start, d.tokens.tolist(), d.features.tolist()) for d in head_drafts]

    def check_read(prompt: list[int], cached: int, salt: str = "") -> list[int]:
        """Check that the prompt is read as without a cache, and return the text."""
        fresh = Engine({"target": ToyBackend(TOY)}, Limits(prefix_cache=False))
        wanted = rows(made(fresh, prompt))
        sequence = made(engine, prompt, salt=salt)
        assert sequence.cached_tokens == cached
        assert rows(sequence) == wanted
        return sequence.tokens.tolist()

    engine = Engine({"target": ToyBackend(TOY)}, Limits())
    text = check_read([5, 6, 7, 8, 9] * 8, 0)
    check_read(text[:40], 32)
    check_read([*text, 3, 3, 3], 48)  # What the second request has written, too.
    check_read([*text, 3, 3, 3], 48)
    # Texts that begin as another goes on are other texts, and so are those that part from it.
    check_read(text[32:], 0)
    check_read([*text[32:], 4, 4], 16)
    check_read([*text[:16], *reversed(text[16:])], 16)
    check_read(text[:40], 0, "other")
    # Plain decoding stored no states, so the head begins after its text.
    unseen = [3 + i * i % 19 + i % 7 for i in range(40)]
    made(engine, unseen, "greedy")
    text = made(engine, unseen).tokens.tolist()
    assert head_drafts[0].start == 32
    check_read(text[32:], 0)
    check_read([*text[32:], 4], 16)


@pytest.mark.parametrize("kind", KINDS)
def test_levels_that_are_made_together_need_not_earn_their_seconds(kind, tmp_path, monkeypatch):
    """A head that makes all levels in one call drafts all of them, even if they are slow."""
    from paradecode.engine import engine as module

    least: set[float] = set()
    run = module.drafts_of

    def seen(backend: Any, head: Head, drafts: Sequence[HeadDraft]) -> list[TokenTree]:
        least.update(draft.least for draft in drafts)
        head.pace.draft = head.pace.level = 100.0
        return run(backend, head, drafts)

    monkeypatch.setattr(module, "drafts_of", seen)
    head = f"head='{random_head(kind, TOY, tmp_path)}'"
    serve([f"{METHOD.get(kind, kind)}({head},budget=hardware)"], curve=True, max_tokens=12)
    assert (max(least) == 0) == (
        kind in {"medusa", "medusa-own", "p-eagle", "dflash", "dspark", "dflash2"}
    )


def test_of_past_states_the_end_of_a_text_is_forgotten_first() -> None:
    states = np.arange(48 * 3, dtype=np.float32).reshape(48, 3)
    tokens = np.arange(48, dtype=np.int32)
    past = PastStates(most_bytes=2 * 16 * 3 * 4)
    text = TextStates(past)
    for start in range(0, 48, 5):
        text.extend(tokens[start : start + 5], states[start : start + 5])
    assert past.nbytes == past.most_bytes
    found = past.of(tokens[:32])
    assert found is not None
    assert np.array_equal(found, states[:32])
    for unknown in (tokens, tokens[:24], tokens[16:32], tokens[:0]):
        assert past.of(unknown) is None
    # Another text replaces the end of this one, which was used longer ago.
    TextStates(past).extend(tokens[16:40], states[16:40])
    assert past.nbytes == past.most_bytes
    assert past.of(tokens[16:32]) is not None
    assert past.of(tokens[:16]) is not None
    assert past.of(tokens[:32]) is None


def test_past_states_hold_no_more_memory_than_they_say() -> None:
    past, states = PastStates(), np.zeros((65, 1000), np.float32)
    text = TextStates(past)
    text.extend(np.arange(65), states)
    assert past.nbytes == 64 * 1000 * 4
    assert all(page.base is None or page.base.nbytes == page.nbytes
               for page in [*past._pages.values(), *text._states])  # fmt: skip


def test_a_head_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the folder of"):
        parse("eagle")
    with pytest.raises(InvalidInput, match="cannot be read"):
        serve([f"eagle(head='{tmp_path / 'none'}')"])
