"""Small networks on each backend equal plain NumPy, and rows do not depend on other rows."""

import itertools

import numpy as np
import pytest

from paradecode.backends.native import _core
from paradecode.backends.native.heads import run_networks as native
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Network, Op
from paradecode.testing.network_reference import apply_network

WIDTH = 12
RANDOM = np.random.default_rng(0)


def tensor(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


TENSORS = {
    "square": tensor(WIDTH, WIDTH) / 3, "wide": tensor(WIDTH, 37), "narrow": tensor(37, 1),
    "row": tensor(WIDTH), "other": tensor(WIDTH), "table": tensor(9, WIDTH),
}  # fmt: skip
X, IDS = {"x": WIDTH}, {"positions": 0, "groups": 0}


def network(*steps: Op, inputs: dict[str, int] | None = None) -> Network:
    used = {name for step in steps for name in step.tensors}
    return Network(inputs or X, steps, {n: t for n, t in TENSORS.items() if n in used})


def attention(heads: int = 2) -> Network:
    return network(
        Op("q", "linear", ("x",), ("square",)), Op("k", "scale", ("x",), ("row",)),
        Op("mixed", "attention", ("q", "k", "x", "positions", "groups"), (), heads, 10000.0),
        Op("out", "add", ("x", "mixed")), inputs={**X, **IDS},
    )  # fmt: skip


ONE_STEP = {
    "linear": ("square",), "standardise": ("row", "other"), "scale": ("row",), "shift": ("row",),
    "relu": (), "silu": (), "sigmoid": (), "gelu": (), "rms": (), "centre": (),
}  # fmt: skip
NETWORKS = {
    **{kind: network(Op("y", kind, ("x",), used, 0, 1e-6)) for kind, used in ONE_STEP.items()},
    **{
        kind: network(Op("r", "rms", ("x",), (), 0, 0.1), Op("y", kind, ("x", other)))
        for kind, other in itertools.product(("add", "multiply", "divide"), ("r",))
    },
    "join": network(Op("r", "rms", ("x",)), Op("y", "join", ("x", "r", "x"))),
    "part": network(Op("s", "part", ("x",), (), 5, 3), Op("y", "add", ("s", "s"))),
    "all of it": network(Op("y", "part", ("x",), (), WIDTH)),
    "lookup": network(Op("y", "lookup", ("ids",), ("table",)), inputs={"ids": 0}),
    "deep": network(
        Op("a", "linear", ("x",), ("wide",)), Op("b", "silu", ("a",)),
        Op("c", "linear", ("b",), ("narrow",)),
    ),
    "one head": attention(1),
    "attention": attention(),
}  # fmt: skip


def item(rows: int, model: Network, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, width in model.inputs.items():
        made[name] = random.standard_normal((rows, width)).astype(np.float32)
        if width == 0:
            made[name] = random.integers(0, 9, rows)
    return made


@pytest.mark.parametrize("name", NETWORKS)
def test_native_and_torch_agree_with_numpy(name: str) -> None:
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.network import TorchNetworks

    model = NETWORKS[name]
    items = [item(rows, model, rows) for rows in (1, 3, 0, 17, 40)]
    wanted = apply_network(model, items)
    for made in (native(model, items), TorchNetworks(torch.device("cpu")).apply(model, items)):
        for got, right in zip(made, wanted, strict=True):
            assert got.shape == right.shape
            assert got.dtype == np.float32
            assert np.allclose(got, right, rtol=1e-4, atol=1e-5)


def test_torch_takes_what_must_not_be_written(recwarn: pytest.WarningsRecorder) -> None:
    """PyTorch reads arrays that must not be written, such as a mapped file's, without a warning."""
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.network import TorchNetworks

    fixed, rows = TENSORS["row"].copy(), tensor(3, WIDTH)
    fixed.flags.writeable = rows.flags.writeable = False
    model = Network(X, (Op("y", "scale", ("x",), ("row",)),), {"row": fixed})
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        (made,) = TorchNetworks(torch.device("cpu")).apply(model, [{"x": rows}])
    finally:
        torch.set_warn_always(always)
    assert np.array_equal(made, rows * fixed)
    assert not recwarn.list


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_gets_the_same_bits_whoever_shares_the_call(name: str) -> None:
    model = NETWORKS[name]
    items = [item(rows, model, rows) for rows in (1, 5, 16, 23)]
    together = native(model, items)
    for one, same in zip(items, together, strict=True):
        assert np.array_equal(native(model, [one])[0], same)
        if "positions" not in one:  # Without attention a row is alone in its item as well.
            for row in range(len(same)):
                alone = {key: values[row : row + 1] for key, values in one.items()}
                assert np.array_equal(native(model, [alone])[0][0], same[row])


@pytest.mark.parametrize("isa", _core.available_isas())
def test_every_instruction_set_gives_the_same_bits(isa: str, monkeypatch) -> None:
    items = [item(19, NETWORKS["deep"])]
    wanted = native(NETWORKS["deep"], items)[0]
    monkeypatch.setenv("PARADECODE_ISA", isa)
    old = NETWORKS["deep"]
    again = Network(old.inputs, old.steps, old.tensors)
    assert np.array_equal(native(again, items)[0], wanted)


def test_a_row_is_blind_to_later_groups() -> None:
    model = attention()
    one = item(6, model)
    one["groups"] = np.array([0, 0, 1, 1, 2, 2])
    other = {**one, "x": one["x"].copy()}
    other["x"][4:] += 1
    before, after = native(model, [one, other])
    assert np.array_equal(before[:4], after[:4])
    assert not np.allclose(before[4:], after[4:])


def test_only_distances_of_positions_count() -> None:
    model = attention()
    one = item(6, model)
    one |= {"positions": np.arange(6), "groups": np.zeros(6, int)}
    moved, backwards = {**one, "positions": np.arange(6) + 7}, {**one, "positions": -np.arange(6)}
    plain, same, other = native(model, [one, moved, backwards])
    assert np.allclose(plain, same, atol=1e-5)
    assert not np.allclose(plain, other, atol=1e-3)


BAD_STEPS = [
    Op("y", "relu", ("z",)), Op("x", "relu", ("x",)), Op("y", "what", ("x",)),
    Op("y", "relu", ()), Op("y", "relu", ("x",), ("row",)), Op("y", "linear", ("x",)),
    Op("y", "linear", ("x",), ("narrow",)), Op("y", "linear", ("x",), ("row",)),
    Op("y", "scale", ("x",), ("square",)), Op("y", "lookup", ("x",), ("table",)),
    Op("y", "add", ("x", "ids")), Op("y", "join", ()), Op("y", "rms", ("x",), (), 0, np.nan),
    Op("y", "relu", ("ids",)), Op("y", "attention", ("x", "x", "x", "ids", "x"), (), 2, 1.0),
    Op("y", "attention", ("x", "x", "x", "ids", "ids"), (), 5, 1.0),
    Op("y", "attention", ("x", "x", "x", "ids", "ids"), (), 0, 1.0),
    Op("y", "attention", ("x", "x", "x", "ids", "ids"), (), 2, 0.0),
    *(Op("y", "part", ("x",), (), count, begin) for count, begin in (
        (0, 0), (-1, 2), (2, -1), (2, 0.5), (2, WIDTH - 1), (WIDTH + 1, 0), (1, 1e30))),
    Op("y", "part", ("ids",), (), 1), Op("y", "part", ("x", "x"), (), 1),
]  # fmt: skip


@pytest.mark.parametrize("step", BAD_STEPS, ids=str)
def test_sizes_that_do_not_fit_are_refused(step: Op) -> None:
    inputs = {"x": WIDTH, "ids": 0}
    with pytest.raises(InvalidInput, match="network"):
        network(step, inputs=inputs)
    if step.kind != "what" and set(step.values) <= set(inputs) and step.out != "x":
        kinds = [*_kinds()]
        values = [[*inputs].index(v) for v in step.values]
        arrays = [TENSORS[name] for name in step.tensors]
        low = (kinds.index(step.kind), values, [*range(len(arrays))], step.count, step.number)
        with pytest.raises(InvalidInput, match="do not fit"):
            _core.Network([WIDTH, 0], [low], arrays)


def _kinds() -> tuple[str, ...]:
    from paradecode.core.network import KINDS

    return KINDS


def test_the_core_checks_what_it_is_given() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        _core.Network([WIDTH], [], [])
    for step in ((5, [1], [], 0, 0.0), (5, [-1], [], 0, 0.0), (99, [0], [], 0, 0.0),
                 (-1, [0], [], 0, 0.0), (0, [0], [3], 0, 0.0)):  # fmt: skip
        with pytest.raises(InvalidInput):
            _core.Network([WIDTH], [step], [])
    made = _core.Network([WIDTH, 0], [(4, [1], [0], 0, 0.0)], [TENSORS["table"]])
    x, ids = np.zeros((2, WIDTH), np.float32), np.array([3, 8])
    assert np.array_equal(made.run([x, ids], [2]), TENSORS["table"][ids])
    for bad in ([x], [x, ids[:1]], [x[:, 1:], ids], [x.astype(float), ids], [x, np.array([3, 9])],
                [x, np.array([-1, 3])]):  # fmt: skip
        with pytest.raises(InvalidInput):
            made.run(bad, [2])
    for ends in ([3], [2, 1], [-1]):
        with pytest.raises(InvalidInput):
            made.run([x, ids], ends)


@pytest.mark.parametrize("change", [
    {"x": np.zeros((3, WIDTH), np.float32)}, {"x": np.zeros((2, 5), np.float32)},
    {"x": np.zeros((2, WIDTH), int)}, {"positions": np.zeros(2)}, {"more": np.zeros(2)},
    {"groups": np.zeros((2, 1), int)}, {"x": np.float32(3.0)},
])  # fmt: skip
def test_items_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    model = attention()
    for run in (native, apply_network):
        with pytest.raises(InvalidInput):
            run(model, [{**item(2, model), **change}])
    with pytest.raises(InvalidInput):
        native(NETWORKS["lookup"], [{"ids": np.array([9])}])


def test_an_unknown_step_is_refused() -> None:
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.network import compute

    with pytest.raises(InvalidInput, match="'cosine'"):
        compute([Op("y", "cosine", ("x",))], {"x": torch.zeros(2, 3)}, {})
