"""Out-of-range input is refused with the name of its field, and nothing is stored."""

import copy
import gc
import os
import signal
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive import random_weights
from native_models import BASE, CONFIGS, make

from paradecode.backends.native import _core
from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.native.shape import shape_record
from paradecode.core.errors import BackendError, InvalidInput, InvalidModel
from paradecode.core.layers import Half
from paradecode.models.config import Rope, uniform
from paradecode.models.weights import Kind, Tensor
from patience import PATIENCE
from spans import span


@pytest.fixture(scope="module")
def backend():
    return make(BASE, dtype="q8", pages=8)


def i32(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize("layers", [
    (3,), (-1,), ((3, "mlp"),), ((-1, "mlp"),), ((0, "both"),), ((0, "mlp\0"),), ((0, b"mlp"),),
    ((0, None),), ((0, "mlp", 0),), ((0,),), ((),), (((0, "mlp"), "mlp"),), (("0", "mlp"),),
    ((True, "mlp"),), ((1 << 80, "mlp"),), ((0.0, "mlp"),), (False,), (1 << 80,), (-1 << 80,),
    (0.5,), ("mlp",), (None,), ([0, "mlp"],), "mlp", b"0", 0, {0: 1}, np.array([0, 1]),
    ((0, "\ud800"),), [0] * 20000,
], ids=lambda layers: repr(layers)[:40])  # fmt: skip
def test_the_core_itself_refuses_what_are_no_layers(backend, layers):
    """The core itself refuses invalid layers, without the checks of its Python class."""
    backend.forward([span([4, 5], [1, 2, 3, 4, 5])])
    row = span([4, 5], [9], 5, slots=i32(-1))
    before = backend.forward([row])[0].logits.numpy()
    with pytest.raises(InvalidInput, match="layers"):
        backend._model().forward([span([4, 5], [6, 7, 8])], layers)
    assert (backend.forward([row])[0].logits.numpy() == before).all()


def test_an_index_that_raises_reaches_the_caller(backend):
    class Odd:
        def __index__(self):
            raise ZeroDivisionError

    for layers in ((Odd(),), ((Odd(), "mlp"),)):
        with pytest.raises(ZeroDivisionError):
            backend._model().forward([span([4, 5], [6])], layers)


def test_two_sequences_may_not_touch_one_slot(backend):
    with pytest.raises(InvalidInput, match="slots"):
        backend.forward([span([1], [1]), span([1], [1])])
    with pytest.raises(InvalidInput, match="slots"):
        backend.forward([span([1], [1], 3), span([1], [1], 4)])
    backend.forward([span([1], [1], 3, slots=i32(4)), span([1], [1], 3, slots=i32(5))])


def test_layers_that_read_what_is_not_there_are_refused():
    """Second embeddings need tokens, and a layer's keys are read only after it has run."""
    config = replace(CONFIGS["second_embeddings"], token_rows=50)
    backend = make(config, pages=8)
    backend.forward([span([0], [1, 49, 3])])
    states = np.zeros((1, config.hidden_size), np.float32)
    for bad in (span([0], [50], 3), span([0], [1], 3, embeddings=states)):
        with pytest.raises(InvalidInput, match="second embeddings"):
            backend.forward([bad])
    alone = span([0], [1], 3, layers=(Half(2, "attention"),))
    backend.forward([alone])
    with pytest.raises(InvalidInput, match="keys of layer 0"):
        backend.forward([replace(alone, slots=i32(-1))])


def test_spans_must_agree_on_layers(backend):
    with pytest.raises(InvalidInput, match="layers"):
        backend.forward([span([1], [1], layers=(0,)), span([2], [1])])
    with pytest.raises(InvalidInput, match="spans"):
        backend.forward([])
    with pytest.raises(InvalidInput, match="positions"):
        backend.forward([span([1], [])])


def test_copy_reserve_and_options_are_checked(backend):
    for source, target, field in [([128], [0], "source"), ([0], [-1], "target"),
                                  ([0, 1], [2], "target")]:  # fmt: skip
        with pytest.raises(InvalidInput, match=field):
            backend.copy(np.array(source), np.array(target))
    with pytest.raises(InvalidInput, match="pages"):
        make(BASE, pages=0)
    for options, field in [({"dtype": "int3"}, "dtype"), ({"kv_dtype": "q8"}, "kv_dtype"),
                           ({"threads": 0}, "threads")]:  # fmt: skip
        with pytest.raises(InvalidInput, match=field):
            make(BASE, **options)
    weights = random_weights(BASE)
    del weights["layers.1.up"]
    with pytest.raises(InvalidModel, match=r"layers\.1\.up"):
        NativeBackend(BASE, weights)


def test_the_instruction_set_can_be_chosen(monkeypatch):
    for name in _core.available_isas():
        monkeypatch.setenv("PARADECODE_ISA", name)
        assert _core.chosen_isa()[0] == name
    monkeypatch.setenv("PARADECODE_ISA", "mmx")
    with pytest.raises(InvalidInput, match="PARADECODE_ISA"):
        make(BASE)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.F16, Kind.BF16, Kind.F32])
def test_stored_weights_are_kept_as_they_are(kind):
    """Each format keeps the stored weights: the LM head's products equal those of its weights.

    The inputs are signs, which quantise without error.
    """
    from gguf import quants

    config = BASE.altered(layers=1, norm_eps=1e-30)
    weights = random_weights(config)
    values = weights["head"].float32()
    weights["norm"] = Tensor(np.ones(64, np.float32), (64,), Kind.F32)
    if kind in (Kind.F16, Kind.F32):
        stored = values.astype(np.float16 if kind == Kind.F16 else np.float32)
    else:
        stored = quants.quantize(values, kind)
        if kind == Kind.BF16:
            stored = stored.view(np.uint16)
    weights["head"] = Tensor(stored, (100, 64), kind)
    backend = NativeBackend(config, weights)
    backend.reserve(1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (5, 64)).astype(np.float32)
    (result,) = backend.forward([span([0], range(5), embeddings=signs, layers=())])
    expected = signs.astype(np.float64) @ weights["head"].float32().astype(np.float64).T
    np.testing.assert_allclose(result.logits.numpy(), expected, atol=2e-5)


def test_q4_k_blocks_keep_their_integers():
    """The integers of Q4_K blocks are kept; only products of their scales are rounded."""
    from gguf import quants

    config = BASE.altered(hidden_size=256, layers=1, norm_eps=1e-30)
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, (100, 144), dtype=np.uint8)
    blocks[:, :4] = rng.uniform(0.01, 0.02, (100, 2)).astype(np.float16).view(np.uint8)
    weights = random_weights(config)
    weights["norm"] = Tensor(np.ones(256, np.float32), (256,), Kind.F32)
    weights["head"] = Tensor(blocks, (100, 256), Kind.Q4_K)
    backend = NativeBackend(config, weights)
    backend.reserve(1)
    signs = rng.choice([-1.0, 1.0], (5, 256)).astype(np.float32)
    (result,) = backend.forward([span([0], range(5), embeddings=signs, layers=())])
    values = quants.dequantize(blocks, Kind.Q4_K).astype(np.float64)
    error = np.abs(result.logits.numpy() - signs @ values.T)
    assert (error <= 2.0**-11 * (np.abs(values).sum(axis=1) * 2 + 30)).all()
    assert error.max() < 2e-3 * np.abs(signs @ values.T).max()


def test_converted_weights_are_close():
    config = BASE.altered(layers=1)
    tokens = np.random.default_rng(1).integers(0, 100, 30)

    def logits(**options):
        return make(config, **options).forward([span([0, 1], tokens)])[0].logits.numpy()

    exact = logits(dtype="f32", kv_dtype="f32")
    for dtype, low, high in [("f16", 1e-5, 2e-3), ("bf16", 1e-3, 1e-2), ("q8", 2e-3, 6e-2),
                             ("q4", 3e-2, 0.5)]:  # fmt: skip
        error = np.sqrt(((logits(dtype=dtype) - exact) ** 2).mean()) / exact.std()
        assert low < error < high, (dtype, error)


def test_close_is_final_and_may_be_repeated():
    backend = make(BASE)
    result = backend.forward([span([0], [1, 2])])[0]
    backend.close()
    backend.close()
    gc.collect()
    assert result.logits.argmax().shape == (2,)  # results outlive the backend
    for call in (lambda: backend.forward([span([0], [1])]), lambda: backend.reserve(1)):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_callers_in_several_threads():
    backends = [make(BASE, dtype="q8", threads=2) for _ in range(2)]
    expected = backends[0].forward([span([0], [1, 2, 3])])[0].logits.numpy()
    wrong = []

    def work(backend, page):
        for _ in range(30):
            got = backend.forward([span([page], [1, 2, 3])])[0].logits.numpy()
            if not (got == expected).all():
                wrong.append(page)

    threads = [threading.Thread(target=work, args=(backends[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error_and_can_make_its_own():
    backend = make(BASE, threads=2)
    backend.forward([span([0], [1])])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            backend.forward([span([0], [1])])
        except BackendError:
            mine = make(BASE, threads=2)
            status = 0 if mine.forward([span([0], [1])])[0].logits.shape == (1, 100) else 2
            del mine, backend
            gc.collect()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.forward([span([0], [1])])[0].logits.shape == (1, 100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_during_a_forward_does_not_wait_for_it():
    """A child forked during a forward gets an error at once, and does not wait for the lock.

    The thread that holds the lock does not exist in the child, so the child would wait forever.
    """
    backend, busy = make(BASE, threads=2, pages=64), True
    slots = np.zeros(1, np.int64)

    def work():
        while busy:
            backend.forward([span(range(16), [1] * 256)])

    thread = threading.Thread(target=work)
    thread.start()
    for call in (lambda: backend.copy(slots, slots), lambda: backend.reserve(2),
                 lambda: backend.profile(False)) * 4:  # fmt: skip
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(120)  # Ends a child that hangs.
                call()
            except BackendError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy = False
    thread.join(PATIENCE)


TINY = shape_record(uniform("t", "llama", 9, 8, 1, 2, 1, 8, 8, rope=Rope(dim=2), context_length=9))


def core_of(shape: dict[str, Any], threads: int = 1) -> _core.Model:
    return _core.Model(shape, half_cache=True, threads=threads, apart=False)


def changed(place: str, field: str, value: object) -> dict[str, Any]:
    """Return the record with another value of a field, of the model or of its first part."""
    record = copy.deepcopy(TINY)
    (record if place == "model" else record[place][0])[field] = value
    return record


@pytest.mark.parametrize(("place", "field", "value"), [
    ("model", "vocab_size", 0), ("model", "outputs", 0), ("model", "outputs", 10),
    ("model", "hidden_size", 0), ("model", "hidden_size", -5), ("model", "hidden_size", 2**31 - 1),
    ("model", "hidden_size", 2**70), ("model", "hidden_size", 8.0), ("model", "hidden_size", True),
    ("model", "context_length", -1), ("model", "norm_eps", np.nan), ("model", "softcap", np.inf),
    ("model", "norm_kind", "batch"), ("model", "positions", 8), ("model", "embed_norm", 1),
    ("model", "layers", []), ("model", "layers", 3), ("model", "attentions", []),
    ("model", "canvas", 0), ("model", "token_width", -1), ("attentions", "heads", 2**30),
    ("attentions", "kv_heads", 0), ("attentions", "kv_heads", 3), ("attentions", "head_dim", 2000),
    ("attentions", "window", -1), ("attentions", "inverse_frequencies", [1.0] * 5),
    ("attentions", "inverse_frequencies", ["a"]), ("attentions", "slopes", [1.0]),
    ("attentions", "norm", "shared"), ("attentions", "qk_norm", 0), ("attentions", "scale", -1.0),
    ("attentions", "query_rank", -1), ("feeds", "size", -7), ("feeds", "size", 0),
    ("feeds", "activation", "tanh"), ("feeds", "norm", "shared"), ("feeds", "mixture", [{}]),
    ("layers", "attention", 1), ("layers", "feed", -2), ("layers", "keys_of", 0),
    ("layers", "groups", [1]), ("layers", "groups", [-1, 1]), ("layers", "groups", [1e9]),
    ("layers", "ladder", "none"), ("layers", "reads_token", True), ("feeds", "out_factor", np.nan),
    ("attentions", "out_factor", -1.0), ("feeds", "gate_factor", np.inf),
])  # fmt: skip
def test_models_of_absurd_shapes_are_refused(place, field, value):
    core_of(TINY)
    named = {"window": "sliding_window", "size": "intermediate_size", "reads_token": "token_width"}
    with pytest.raises(InvalidInput, match=named.get(field, field)):
        core_of(changed(place, field, value))


def test_records_of_other_entries_are_refused():
    for record in ({**TINY, "more": 1}, {"vocab_size": 9}, [], changed("feeds", "more", 1)):
        with pytest.raises(InvalidInput):
            core_of(record)
    for threads in (0, 1025):
        with pytest.raises(InvalidInput, match="threads"):
            core_of(TINY, threads)


def test_a_model_without_all_weights_is_not_finished():
    core = make(BASE, dtype="f32")._model()
    with pytest.raises(InvalidInput, match="'embed'"):  # A first row that overflows.
        core.fill("embed", 2**63 - 1, 0, np.zeros((1, 256), np.uint8))
    bare = core_of(TINY)
    shapes = {
        "embed": 9, "layers.0.q": 16, "layers.0.k": 8, "layers.0.v": 8, "layers.0.o": 8,
        "layers.0.gate": 8, "layers.0.up": 8, "layers.0.down": 8,
    }  # fmt: skip
    vectors = ("layers.0.attn_norm", "layers.0.mlp_norm", "norm")
    for name in shapes:
        with pytest.raises(InvalidInput, match="before the loading is finished"):
            bare.finish_loading(True)
        bare.set_format(name, 4)
    for name in vectors:
        with pytest.raises(InvalidInput, match=f"'{name}'"):
            bare.finish_loading(True)
        bare.set_vector(name, np.ones(8, np.float32))
    bare.finish_loading(True)
    bare.reserve(1)
    assert bare.forward([span([0], [1])], None)[0][0].shape == (1, 9)


def test_logits_and_measurements_of_no_size_are_refused():
    with pytest.raises(InvalidInput, match="columns of values"):
        _core.logits_from(np.zeros((1, 0), np.float32))
    logits = _core.logits_from(np.zeros((1, 5), np.float32))
    for temperature in (-1.0, 0.0, 1e-300, np.nan, np.inf):
        with pytest.raises(InvalidInput, match="temperature"):
            logits.tempered(temperature)
    for measured in (_core.dot_peak, _core.float_peak, lambda t: _core.read_bandwidth(1 << 20, t)):
        for threads in (-3, 0, 1025):
            with pytest.raises(InvalidInput, match="threads"):
                measured(threads)
    with pytest.raises(InvalidInput, match="bytes"):
        _core.read_bandwidth(0, 1)
    for rows, seconds in (([np.nan, 2.0], 1.0), ([1.0, 2.0], np.inf), ([1.0, np.inf], 1.0)):
        with pytest.raises(InvalidInput, match="finite"):
            _core.CostCurve(rows, [1.0], [[1.0, seconds]])


def test_networks_of_impossible_steps_are_refused():
    attention = (15, [0, 1, 2, 3, 4], [], 2**31 - 1, 1e4)
    with pytest.raises(InvalidInput, match="sizes"):
        _core.Network([4, 4, 4, 0, 0], [attention], [], "f32")


@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_a_tensor_may_be_a_matrix_and_a_vector(dtype):
    steps = [(0, [0], [0], 0, 0.0), (2, [1], [0], 0, 0.0), (11, [2, 3], [], 0, 0.0)]
    network = _core.Network([1, 4], steps, [np.ones((1, 4), np.float32)], dtype)
    made = network.run([np.ones((1, 1), np.float32), np.ones((1, 4), np.float32)], [1])
    np.testing.assert_allclose(made, 2.0, atol=0.02)
