"""Tests of the datastore against brute force and damaged files, and of REST and RASD."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import Request, certain, draft, hashed, play
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT
from paradecode.methods.draft.drafters.retrieval import (
    CONTEXT,
    HEADER,
    Datastore,
    Rasd,
    Retrieval,
    build_datastore,
    open_datastore,
    order_by_context,
)
from paradecode.methods.specs import parse


def build(folder: Path, *documents: list[int]) -> str:
    """Write a datastore of documents given as token ids."""
    paths = []
    for number, document in enumerate(documents):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text(" ".join(map(str, document)), "utf-8")
    output = folder / "store.pds"
    build_datastore(paths, lambda text: [int(word) for word in text.split()], output)
    return str(output)


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=60))
def test_positions_are_sorted_by_reversed_context(text):
    tokens = np.array(text, np.int32)

    def context(end):
        return text[max(0, end + 1 - CONTEXT) : end + 1][::-1]

    order = order_by_context(tokens).tolist()
    assert order == sorted(range(len(text)), key=context)  # Both sorts are stable.


def test_finds_what_a_scan_finds(tmp_path):
    random = np.random.default_rng(0)
    documents = [random.integers(0, 3, size).tolist() for size in (200, 1, 90)]
    store = Datastore(build(tmp_path, *documents))
    text = store.tokens.tolist()
    assert text == [t for document in documents for t in [*document, -1]]
    for trial in range(200):
        tail = random.integers(0, 3, random.integers(1, 24)).tolist()
        longest, shortest = int(random.integers(1, 17)), int(random.integers(1, 4))
        wanted: list[int] = []
        for size in range(min(longest, len(tail)), shortest - 1, -1):
            ends = range(size, len(text) + 1)
            wanted = [end for end in ends if text[end - size : end] == tail[-size:]]
            if wanted:
                break
        starts, matched = store.find(np.array(tail, np.int32), longest, shortest, 10_000)
        assert starts.tolist() == wanted, trial
        assert matched == (size if wanted else 0)
        few, _ = store.find(np.array(tail, np.int32), longest, shortest, 5)
        assert len(few) == min(5, len(wanted))
        assert set(few.tolist()) <= set(wanted)


def test_large_token_ids_survive(tmp_path):
    """Token ids above 16 bits are stored; REST's own datastore has 16 bits per token."""
    store = Datastore(build(tmp_path, [70_000, 150_000, 70_000, 3]))
    starts, matched = store.find(np.array([150_000, 70_000], np.int32), 16, 1, 9)
    assert (starts.tolist(), matched) == ([3], 2)
    assert store.vocabulary == 150_001


def test_drafts_come_from_the_datastore(tmp_path):
    path = build(tmp_path, [1, 2, 3, 4, 5, 6], [9, 2, 3, 7, 8], [0, 2, 3, 7, 1])
    seq = Request([20, 2, 3])
    tree = draft(Retrieval(path), seq, 3)
    assert tree.tokens[tree.parents == ROOT].tolist() == [7, 4]
    assert tree.tokens[0] == 7
    assert draft(Retrieval(path), Request([1, 2, 3])).tokens[0] == 4  # The longer match.
    assert len(draft(Retrieval(path), Request([20, 21, 22]))) == 0


def test_another_tokenizer_is_refused(tmp_path):
    path = build(tmp_path, [1, 2, 40])
    with pytest.raises(InvalidInput, match="tokenizer"):
        draft(Retrieval(path), Request([1, 2], vocabulary=32))


DAMAGE = {
    "empty": lambda data: b"", "short header": lambda data: data[:20],
    "other magic": lambda data: b"X" + data[1:], "truncated": lambda data: data[:-1],
    "too long": lambda data: data + b"\0", "no tokens": lambda data: HEADER.pack(b"PDSTORE1", 0, 1),
    "huge count": lambda data: HEADER.pack(b"PDSTORE1", 1 << 62, 9) + data[HEADER.size :],
    "token out of range": lambda data: data[:32] + b"\xff\xff\xff\x7f" + data[36:],
    "token below -1": lambda data: data[:32] + b"\x00\x00\x00\x80" + data[36:],
    "position out of range": lambda data: data[:-4] + b"\xff\xff\xff\xff",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_refused(tmp_path, damage):
    path = Path(build(tmp_path, [1, 2, 3, 4]))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match="datastore"):
        parse(f"retrieval(datastore='{path}')")


@given(st.binary(max_size=200))
def test_any_order_of_positions_is_survived(tmp_path_factory, noise):
    """A file that passes the checks but is not sorted gives bad drafts, and no error."""
    path = Path(build(tmp_path_factory.mktemp("store"), [1, 2, 3, 1, 2, 4, 1, 2]))
    data, count = bytearray(path.read_bytes()), 9
    for index, byte in enumerate(noise[:count]):
        start = HEADER.size + 4 * count + 4 * index
        data[start : start + 4] = (byte % count).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    seq = play(f"retrieval(datastore='{path}')", Request([1, 2], 10), hashed())
    assert seq.output == play("greedy", Request([1, 2], 10), hashed()).output


def test_missing_files_and_bad_texts(tmp_path):
    with pytest.raises(InvalidInput, match="datastore"):
        parse("retrieval(datastore='/does/not/exist')")
    with pytest.raises(InvalidInput, match="path of a file"):
        parse({"method": "retrieval", "datastore": 7})
    with pytest.raises(InvalidInput, match="path of a file"):
        parse({"method": "retrieval", "datastore": "a\0b"})
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe")
    for paths in ([bad], [tmp_path / "none.txt"], []):
        with pytest.raises(InvalidInput, match="paths"):
            build_datastore(paths, lambda text: [], tmp_path / "out")


def test_a_rebuilt_file_is_opened_again(tmp_path):
    first = open_datastore(build(tmp_path, [1, 2, 3]))
    assert open_datastore(str(tmp_path / "store.pds")) is first
    assert len(open_datastore(build(tmp_path, [1, 2, 3, 4, 5]))) == 6


def test_specs_with_paths_can_be_read_back(tmp_path):
    spec = parse({"method": "retrieval", "datastore": build(tmp_path, [1, 2]), "hits": 3})
    assert parse(str(spec)) == spec


def test_rasd_keeps_retrieved_paths_that_begin_as_the_drafter_would(tmp_path):
    path = build(tmp_path, [1, 2, 3, 4, 5], [1, 2, 6, 7])
    stores: dict[str, object] = {}
    play("token-recycling(k=1)", Request([1], 2, stores), certain(lambda text: 3))
    seq = Request([1, 2], stores=stores)
    unpruned = draft(Rasd(path), seq)
    assert {3, 6} <= set(unpruned.tokens.tolist())  # Nothing is known of 2 yet.
    drafter = Rasd(path)
    table = drafter.parts[1]._table(seq)
    table.seen[2], table.ids[2], table.scores[2] = True, 3, 0.0
    tree = draft(drafter, seq)
    assert tree.tokens[tree.parents == ROOT].tolist() == [3]
    assert 4 in tree.tokens
