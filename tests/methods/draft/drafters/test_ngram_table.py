"""Tests of n-gram tables: counts against brute force, damaged files, and drafts."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.drafters.prompt_lookup import PromptLookup
from paradecode.methods.draft.ngram_table import (
    BUCKET_SHIFT,
    BUCKETS,
    LEAST,
    MOST_RANKS,
    ORDER,
    ORDER_BUCKETS,
    RANKS,
    SHARES,
    NgramTable,
    TableDrafts,
    keys_of,
    load_ngrams,
)
from paradecode_lab.training.ngrams.counting import count_ngrams
from tiers import examples

WORDS = [[1, 2, 3, 4, 5, 6]] * 30 + [[7, 2, 3, 9]] * 10


Entries = dict[int, list[tuple[int, int]]]


def entries(table: NgramTable) -> Entries:
    """Return (token, bucket) of each key's entries, the likeliest first."""
    found: Entries = {}
    for key, value in zip(table.keys.tolist(), table.values.tolist()):
        found.setdefault(key, []).append((value % (1 << BUCKET_SHIFT), value >> BUCKET_SHIFT))
    return found


def followers(texts: list[list[int]]) -> dict[tuple[int, ...], Counter[int]]:
    """Count what follows each context, one occurrence at a time."""
    found: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        for end in range(1, len(text)):
            for size in range(1, min(ORDER, end) + 1):
                found.setdefault(tuple(text[end - size : end]), Counter())[text[end]] += 1
    return found


def test_the_longest_context_decides() -> None:
    table = count_ngrams(WORDS, 10)
    assert table.after((2,))[0] == 3
    assert table.after((2, 3))[0] == 4  # Three times as often as 9.
    assert table.after((7, 2, 3))[0] == 9
    assert table.after((6,)) is None
    assert table.after(()) is None


@examples(30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=30), min_size=10, max_size=30))
def test_every_entry_is_what_followed_most_often(texts: list[list[int]]) -> None:
    counted = {keys_of(context)[-1]: (context, c) for context, c in followers(texts).items()}
    for ranks in (1, RANKS):
        for key, kept in entries(count_ngrams(texts, 6, ranks)).items():
            context, after = counted[key]
            usual = sorted(after, key=lambda token: (-after[token], token))
            assert len(kept) <= ranks
            for token, bucket in kept:
                order, rank = divmod(bucket // SHARES, RANKS)
                assert order == len(context) - 1
                assert usual[rank] == token
                assert bucket % SHARES == after[token] * SHARES // (after.total() + 1)


@examples(30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=30), min_size=10, max_size=30))
def test_what_is_left_out_is_seldom_right_or_said_by_a_shorter_context(texts):
    table = count_ngrams(texts, 6, 1)
    for context, after in followers(texts).items():
        token, count = min(after.items(), key=lambda item: (-item[1], item[0]))
        share = count * SHARES // (after.total() + 1)
        chance = table.priors[(len(context) - 1) * RANKS * SHARES + share]
        shorter = table.after(context[1:])
        heard = table.after(context)
        if heard is None or heard == shorter:
            once = count == 1 and len(context) > 2
            known = shorter is not None
            assert once or (chance < LEAST and not known) or (
                shorter is not None and shorter[0] == token
                and chance <= table.priors[shorter[1]] + 0.1 + 1e-9
            )  # fmt: skip


def test_others_are_tried_in_the_order_of_their_counts() -> None:
    texts = [[1, 2, 3, 4]] * 30 + [[1, 2, 3, 5]] * 20 + [[1, 2, 3, 6]] * 15 + [[1, 2, 3, 7]] * 2
    table = count_ngrams(texts, 10, RANKS)
    said = [token for token, _ in table.known((1, 2, 3))]
    assert said[:3] == [4, 5, 6]
    assert 7 not in said


def test_up_to_twelve_tokens_of_a_context() -> None:
    """Tokens after the third share its buckets; of two known contexts the longer one counts."""
    texts = [[1, 2, other, 4] for other in range(5, 20) for _ in range(40 - other)]
    texts += [[30, 2, 25, 4]] * 600
    table = count_ngrams(texts, 32, MOST_RANKS)
    said = list(table.known((1, 2)))
    own = [token for token, bucket in said if bucket // ORDER_BUCKETS == 1]
    assert own == [*range(5, 17)]
    assert {bucket % ORDER_BUCKETS // SHARES for _, bucket in said} == {0, 1, 2}
    assert list(table.chances((1, 2))) == own
    assert table.chances((31, 2)) == table.chances((2,))
    assert next(iter(table.chances((2,)))) == 25
    assert table.chances((31,)) == {}
    assert 0.5 < sum(table.chances((1, 2)).values()) < 1.5


def test_priors_are_counted_on_unseen_texts() -> None:
    random = np.random.default_rng(0)
    noise = [random.integers(0, 400, 200).tolist() for _ in range(60)]
    sure = count_ngrams([[*range(50)]] * 60, 50)
    unsure = count_ngrams(noise, 400)
    assert sure.priors[entries(sure)[keys_of((3,))[-1]][0][1]] > 0.95
    # What was seen once in noise follows again by chance only, whatever its share was.
    assert unsure.priors[RANKS * SHARES + 5] < 0.1
    assert len(entries(unsure)) < 600  # Of 11 000 pairs.


def test_a_request_learns_what_the_table_is_worth_to_it() -> None:
    drafts = TableDrafts(count_ngrams(WORDS, 10))
    token, sure, bucket = drafts.after((1,)) or (0, 0.0, 0)
    assert token == 2
    for _ in range(60):
        drafts.odds.update(bucket, 0, 1)
    token, unsure, _ = drafts.after((1,)) or (0, 0.0, 0)
    assert token == 2
    assert unsure < 0.2 < sure
    assert drafts.after((9,)) is None


def test_a_file_gives_the_same_table(tmp_path: Path) -> None:
    table = count_ngrams(WORDS, 10)
    path = tmp_path / "a.ngrams"
    table.save(path)
    read = load_ngrams(str(path))
    assert entries(read) == entries(table)
    assert read.priors == pytest.approx(table.priors)
    assert read.vocabulary == 10


@examples(150)
@given(st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("t") / "a.ngrams"
    count_ngrams(WORDS, 10).save(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        table = load_ngrams(str(path))
    except InvalidInput:
        return
    assert (table.keys[1:] >= table.keys[:-1]).all()
    for kept in entries(table).values():
        for token, bucket in kept:
            assert 0 <= token < table.vocabulary
            assert 0 <= bucket < BUCKETS
    assert all(0 <= prior <= 1 for prior in table.priors)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InvalidInput, match="texts"):
        count_ngrams([[1, 2]] * 9, 10)
    with pytest.raises(InvalidInput, match="texts"):
        count_ngrams([[1, 10]] * 20, 10)


def proposal(drafter: PromptLookup, seq: Request) -> list[int]:
    with pytest.raises(StopIteration) as done:
        next(drafter.propose(seq, 4))
    return done.value.value.tokens.tolist()


def test_lookup_hears_the_table_where_it_knows_better(tmp_path: Path) -> None:
    count_ngrams(WORDS, 10).save(tmp_path / "a.ngrams")
    with_table = PromptLookup(table=str(tmp_path / "a.ngrams"))
    assert proposal(PromptLookup(), Request([8, 1])) == []
    assert proposal(with_table, Request([8, 1])) == [2, 3, 4, 5]
    long = [1, 8, 0, 5, 2, 0, 3, 7, 0, 9] * 4 + [1]
    assert proposal(with_table, Request(long)) == [8, 0, 5, 2]


def test_a_copy_goes_on_behind_a_token_of_the_table(tmp_path: Path) -> None:
    count_ngrams(WORDS, 10).save(tmp_path / "a.ngrams")
    with_table = PromptLookup(min_ngram=2, table=str(tmp_path / "a.ngrams"))
    # The text has no "4 5" before, but "5 6", which the table proposes.
    assert proposal(with_table, Request([5, 6, 0, 8, 9, 4, 5])) == [6, 0, 8, 9]
    assert proposal(PromptLookup(min_ngram=2), Request([5, 6, 0, 8, 9, 4, 5])) == []


def test_a_table_of_a_larger_vocabulary_is_refused(tmp_path: Path) -> None:
    one = np.ones(1, np.uint32)
    NgramTable(one, one, (0.9,) * BUCKETS, 1 << 20).save(tmp_path / "a.ngrams")
    drafter = PromptLookup(table=str(tmp_path / "a.ngrams"))
    with pytest.raises(InvalidInput, match="make it with this model"):
        proposal(drafter, Request([1]))
