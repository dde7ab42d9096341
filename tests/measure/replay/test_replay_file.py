"""A recording that is saved and loaded stays the same, and hostile files are refused."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from workloads import items, recording_of, toy

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode_lab.measure.replay import Recording
from paradecode_lab.measure.replay.file import DTYPES, KEY

MADE = recording_of(
    toy(), items(3, tokens=8), SamplingParams(temperature=0.5, logit_bias={5: 1.0}, stop=())
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MADE.save(tmp_path / "a.replay")
    return tmp_path / "a.replay"


def opened(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()[KEY])
        return header, {name: file.get_tensor(name) for name in DTYPES}


def stored(path: Path, header: object, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, path, {KEY: json.dumps(header)})


def test_what_was_saved_is_loaded(path):
    loaded = Recording.load(path)
    assert (loaded.model, loaded.params, loaded.curve, loaded.timing) == (
        MADE.model, MADE.params, MADE.curve, MADE.timing,
    )  # fmt: skip
    for mine, theirs in zip(MADE.requests, loaded.requests, strict=True):
        assert (mine.id, mine.group, mine.max_tokens) == (
            theirs.id, theirs.group, theirs.max_tokens,
        )  # fmt: skip
        for name in ("prompt", "output", "tail", "top_ids", "top_logits", "log_normalizer"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_recordings_of_older_versions_do_not_know_their_weights(path):
    header, tensors = opened(path)
    del header["model"]["weights"]
    stored(path, header, tensors)
    assert Recording.load(path).model.weights == ""


def test_no_size_of_a_truncated_file_does_more_than_fail(path, tmp_path):
    whole = path.read_bytes()
    cut = tmp_path / "cut"
    for size in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1}:
        cut.write_bytes(whole[:size])
        with pytest.raises(InvalidInput):
            Recording.load(cut)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"\x08" + bytes(7) + b"{}      ", pickle.dumps([1])]
)
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidInput, match="recording"):
        Recording.load(tmp_path / "x")
    with pytest.raises(InvalidInput, match="recording"):
        Recording.load(tmp_path)
    with pytest.raises(InvalidInput, match="recording"):
        Recording.load(tmp_path / "missing")


def poisoned(values: np.ndarray, value: float) -> np.ndarray:
    copy = values.copy()
    copy.flat[copy.size // 2] = value
    return copy


@pytest.mark.parametrize(("name", "change"), [
    ("tokens", lambda t: t.astype(np.int64)), ("tokens", lambda t: t[:-1]),
    ("tokens", lambda t: t.reshape(1, -1)), ("tokens", lambda t: poisoned(t, -1)),
    ("tokens", lambda t: poisoned(t, 60)), ("top_ids", lambda t: poisoned(t, 60)),
    ("top_ids", lambda t: t[:, :0]), ("top_ids", lambda t: t[:, :3]),
    ("top_ids", lambda t: t[:, 0]), ("top_ids", lambda t: np.zeros((len(t), 300), np.int32)),
    ("top_logits", lambda t: poisoned(t, np.nan)), ("top_logits", lambda t: poisoned(t, np.inf)),
    ("top_logits", lambda t: t[:, ::-1].copy()), ("log_normalizer", lambda t: poisoned(t, np.nan)),
    ("log_normalizer", lambda t: t[:, None]), ("log_normalizer", lambda t: t.astype(np.float32)),
    ("lengths", lambda t: poisoned(t, -5)), ("lengths", lambda t: poisoned(t, 1 << 62)),
    ("lengths", lambda t: t[:, :3]), ("lengths", lambda t: t[:0]), ("lengths", lambda t: t * 0),
])  # fmt: skip
def test_bad_tensors_are_refused(name, change, path):
    header, tensors = opened(path)
    tensors[name] = np.ascontiguousarray(change(tensors[name]))
    stored(path, header, tensors)
    with pytest.raises(InvalidInput, match="recording"):
        Recording.load(path)


@pytest.mark.parametrize(("key", "value"), [
    ("version", 1), ("version", None), ("model", None), ("model", {"name": "x"}),
    ("params", {"temperature": "hot"}), ("params", {"unknown": 1}), ("params", {"seed": None}),
    ("params", {"seed": 1, "n": 3}), ("params", {"seed": 1, "logit_bias": {"a": 1}}),
    ("params", []), ("curve", {"rows": [1], "contexts": [1], "seconds": [[-1]]}),
    ("curve", {"rows": [2, 1], "contexts": [1], "seconds": [[1, 1]]}),
    ("curve", {"rows": [1], "contexts": [], "seconds": []}), ("curve", 3),
    ("timing", {"python": float("nan")}), ("timing", {"other": 1}), ("requests", []),
    ("requests", [["p0", "a"]] * 3), ("requests", [[1, 2]] * 3), ("requests", [["a"]] * 3),
    ("requests", 7),
])  # fmt: skip
def test_bad_headers_are_refused(key, value, path):
    header, tensors = opened(path)
    stored(path, {**header, key: value}, tensors)
    with pytest.raises(InvalidInput):
        Recording.load(path)


@pytest.mark.parametrize(("key", "value"), [
    ("vocab_size", 4), ("vocab_size", "many"), ("context_length", 8), ("layers", 0),
    ("hidden_size", True), ("eos_tokens", [1 << 40]), ("eos_tokens", 3), ("name", 5), ("extra", 1),
])  # fmt: skip
def test_bad_models_are_refused(key, value, path):
    header, tensors = opened(path)
    stored(path, {**header, "model": {**header["model"], key: value}}, tensors)
    with pytest.raises(InvalidInput):
        Recording.load(path)


def test_missing_and_further_tensors_are_refused(path):
    header, tensors = opened(path)
    for changed in ({**tensors, "more": tensors["tokens"]}, {"tokens": tensors["tokens"]}):
        stored(path, header, changed)
        with pytest.raises(InvalidInput):
            Recording.load(path)


def test_saving_checks_and_leaves_nothing_half_written(path):
    before = path.read_bytes()
    with pytest.raises(InvalidInput):
        replace(MADE, requests=()).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with pytest.raises(InvalidInput):
        MADE.save(path.parent / "no" / "such" / "folder")
