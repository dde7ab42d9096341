"""A row's bits depend on what it sees, not on chunks, slots, other rows, threads or kernels."""

from itertools import pairwise

import numpy as np
import pytest
from native_models import BASE, CONFIGS, PARTS, make, page_count

from paradecode.backends.native import _core
from paradecode.core.layers import Half
from paradecode.models.config import Rope
from spans import span

FORMATS = [("q4", "f16"), ("q8", "f16"), ("bf16", "f16"), ("f16", "f32"), ("f32", "f32")]
WIDE = BASE.altered(
    hidden_size=96, heads=6, kv_heads=2, head_dim=32, rope=Rope(dim=32), vocab_size=333,
    intermediate_size=160,
)  # fmt: skip


def one_by_one(backend, tokens):
    """Run the simplest forwards: one row a forward, with pages in order."""
    rows = [
        backend.forward([span(range(page_count(len(tokens))), tokens[i : i + 1], i)])[0]
        for i in range(len(tokens))
    ]
    return np.concatenate([row.logits.numpy() for row in rows])


@pytest.mark.parametrize(("dtype", "kv"), FORMATS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunks_pages_and_threads(dtype, kv, threads):
    rng = np.random.default_rng(threads)
    tokens = rng.integers(0, 333, 90)
    expected = one_by_one(make(WIDE, dtype=dtype, kv_dtype=kv, threads=1), tokens)
    backend = make(WIDE, dtype=dtype, kv_dtype=kv, threads=threads)
    for _ in range(4):
        pages = rng.permutation(64)[:6]
        cuts = [0, *sorted(rng.choice(np.arange(1, 90), rng.integers(0, 12), replace=False)), 90]
        got = [
            backend.forward([span(pages, tokens[a:b], a)])[0].logits.numpy()
            for a, b in pairwise(cuts)
        ]
        assert (np.concatenate(got) == expected).all()


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_blocks_of_a_long_context_are_merged_alike(kv, window):
    """Blocks of a long context give the same bits, whoever merges them.

    One thread merges three blocks as it goes, or several threads leave them to be merged later.
    """
    config = WIDE.altered(context_length=1024, sliding_window=window)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 333, 700)
    expected = one_by_one(make(config, dtype="q8", kv_dtype=kv, threads=1), tokens)
    for threads in (1, 2, 3, 5):
        backend = make(config, dtype="q8", kv_dtype=kv, threads=threads)
        pages = rng.permutation(64)[:44]
        cuts = [0, 200, 201, 254, 256, 257, 500, 511, 513, 640, 641, 644, 699, 700]
        got = [
            backend.forward([span(pages, tokens[a:b], a)])[0].logits.numpy()
            for a, b in pairwise(cuts)
        ]
        assert (np.concatenate(got) == expected).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_row_that_sees_nothing_mixes_nothing(threads):
    """A row gets zeros if its window excludes the context and it is masked from itself."""
    config = WIDE.altered(heads=6, kv_heads=1, context_length=4096, sliding_window=300, layers=1)
    backend = make(config, dtype="f32", threads=threads, pages=48)
    tokens = np.random.default_rng(3).integers(0, 333, 600)
    backend.forward([span(range(44), tokens)])
    blind = span(range(44), [5, 6], 600, slots=np.full(2, -1, np.int32),
                 positions=np.array([2000, 601], np.int32),
                 mask=np.array([[False, False], [False, True]]))  # fmt: skip
    alone = span([47], [5], slots=np.full(1, -1, np.int32), mask=np.zeros((1, 1), bool))
    for _ in range(3):  # Old buffer contents are not read.
        first = backend.forward([blind])[0].logits.numpy()[0]
        assert (first == backend.forward([alone])[0].logits.numpy()[0]).all()
        assert np.isfinite(first).all()


@pytest.mark.parametrize(("dtype", "kv"), FORMATS)
@pytest.mark.parametrize("threads", [1, 3])
def test_two_halves_are_a_layer(dtype, kv, threads):
    tokens = np.random.default_rng(1).integers(0, 333, 30)
    backend = make(WIDE, dtype=dtype, kv_dtype=kv, threads=threads)
    split = tuple(Half(layer, part) for layer in range(3) for part in ("attention", "mlp"))
    mixed = (0, *split[2:4], 2)
    for a, b in [(0, 22), (22, 29), (29, 30)]:  # Many rows, some, and one.
        runs = [
            backend.forward([span(pages, tokens[a:b], a, layers=layers, hidden=(0, 1, 2))])[0]
            for pages, layers in [([0, 1], None), ([9, 4], (0, 1, 2)), ([3, 7], split),
                                  ([6, 2], mixed)]
        ]  # fmt: skip
        for other in runs[1:]:
            assert (other.logits.numpy() == runs[0].logits.numpy()).all()
            assert all((other.hidden[n] == runs[0].hidden[n]).all() for n in range(3))


def test_a_layer_may_be_finished_by_another_forward():
    tokens = np.random.default_rng(2).integers(0, 333, 9)
    backend = make(WIDE, dtype="q8")
    whole = backend.forward([span([0], tokens)])[0].logits.numpy()
    first = span([1], tokens, layers=(0, Half(1, "attention")), hidden=(1,))
    states = backend.forward([first])[0].hidden[1]
    upper = span([1], tokens, layers=(Half(1, "mlp"), 2), resume=states)
    assert (backend.forward([upper])[0].logits.numpy() == whole).all()
    more = [span([page], [5], 9) for page in (0, 1)]  # All layers hold what they should.
    one, two = backend.forward(more)
    assert (one.logits.numpy() == two.logits.numpy()).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_in_any_batch(name):
    """Three sequences of different lengths give the same results in one forward as alone."""
    config = CONFIGS[name]
    rng = np.random.default_rng(7)
    backend = make(config, dtype="q8")
    texts = [rng.integers(0, config.vocab_size, n) for n in (23, 1, 40)]
    alone = [one_by_one(backend, text) for text in texts]
    pages = np.split(rng.permutation(64)[:9], [3, 6])
    backend.forward([span(pages[0], texts[0][:17]), span(pages[2], texts[2][:33])])
    results = backend.forward(
        [span(pages[0], texts[0][17:], 17), span(pages[1], texts[1]),
         span(pages[2], texts[2][33:], 33)]
    )  # fmt: skip
    for result, expected in zip(results, [alone[0][17:], alone[1], alone[2][33:]]):
        assert (result.logits.numpy() == expected).all()


def random_tree(rng, size):
    parents = np.array([rng.integers(-1, i) if i else -1 for i in range(size)])
    sees = np.eye(size, dtype=bool)
    depths = np.zeros(size, np.int32)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
            depths[node] = depths[parent] + 1
    return parents, sees, depths


@pytest.mark.parametrize(("name", "dtype", "kv", "context"), [
    *[("wide", *form, context) for form in (("q4", "f16"), ("f32", "f32"))
      for context in (0, 1, 15, 37, 250)],
    *[(name, "q8", "f16", 20) for name in PARTS],
])  # fmt: skip
def test_every_tree_path_equals_plain_decoding(name, dtype, kv, context):
    rng = np.random.default_rng(context)
    config = PARTS.get(name, WIDE)
    backend = make(config, dtype=dtype, kv_dtype=kv, threads=2)
    prompt = rng.integers(0, config.vocab_size, context)
    for size in (1, 5, 13):
        parents, sees, depths = random_tree(rng, size)
        tokens = rng.integers(0, config.vocab_size, size)
        pages = rng.permutation(64)[: page_count(context) + 5]
        if context:
            backend.forward([span(pages, prompt)])
        # Some of the nodes run in a first forward and are the cached tail of the second.
        early = int(rng.integers(0, size))
        slots = (context + rng.permutation(80)[:size]).astype(np.int32)
        stored = np.where(rng.random(size) < 0.5, slots, -1).astype(np.int32)
        positions = (context + depths).astype(np.int32)
        first = [] if early == 0 else backend.forward(
            [span(pages, tokens[:early], context, positions=positions[:early],
                  slots=slots[:early], mask=sees[:early, :early])]
        )  # fmt: skip
        second = backend.forward(
            [span(pages, tokens[early:], context, positions=positions[early:],
                  slots=stored[early:], tail=slots[:early], tail_positions=positions[:early],
                  mask=sees[early:])]
        )  # fmt: skip
        got = np.concatenate([r.logits.numpy() for r in [*first, *second]])
        for node in range(size):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            plain = one_by_one(backend, np.concatenate([prompt, tokens[path]]))
            assert (got[node] == plain[-1]).all()


def test_visible_lists_do_not_depend_on_slots():
    rng = np.random.default_rng(11)
    backend = make(WIDE, dtype="q4", threads=2)
    tokens = rng.integers(0, 333, 30)
    expected = one_by_one(backend, tokens)
    slots = rng.permutation(96)[:30].astype(np.int32)
    pages = rng.permutation(64)[:6]
    for i in range(30):
        (result,) = backend.forward(
            [span(pages, tokens[i : i + 1], i, slots=slots[i : i + 1], visible=slots[:i])]
        )
        assert (result.logits.numpy()[0] == expected[i]).all()


@pytest.mark.parametrize(("name", "dtype", "kv"), [
    *[(name, *form) for name in ("odd_sizes", "qk_norm", "widest_heads") for form in FORMATS],
    *[(name, "q8", "f16") for name in PARTS],
])  # fmt: skip
def test_instruction_sets_give_the_same_bits(monkeypatch, name, dtype, kv):
    config = CONFIGS[name]
    tokens = np.random.default_rng(12).integers(0, config.vocab_size, 277)  # Two blocks.
    seen = {}
    for isa in _core.available_isas():
        monkeypatch.setenv("PARADECODE_ISA", isa)
        backend = make(config, dtype=dtype, kv_dtype=kv, threads=1)
        assert backend.instruction_set[0] == isa
        first, second = (
            backend.forward([span(range(18), tokens[a:b], a)])[0].logits.numpy()
            for a, b in [(0, 276), (276, 277)]
        )
        seen[isa] = np.concatenate([first, second])
    if len(seen) < 2:
        pytest.skip(f"this build has one kernel set for this processor: {', '.join(seen)}")
    first, *others = seen.values()
    for logits in others:
        assert (logits == first).all()


def test_a_row_of_nan_stays_alone():
    config = WIDE
    backend = make(config, dtype="q4")
    clean = np.random.default_rng(13).normal(size=(3, 96)).astype(np.float32)
    dirty = clean.copy()
    dirty[1] = np.nan
    mask = np.eye(3, dtype=bool)
    ids = np.zeros(3, np.int32)
    (good,) = backend.forward([span([0], ids, embeddings=clean, mask=mask)])
    (bad,) = backend.forward([span([0], ids, embeddings=dirty, mask=mask)])
    assert np.isnan(bad.logits.numpy()[1]).all()
    assert (bad.logits.numpy()[[0, 2]] == good.logits.numpy()[[0, 2]]).all()
