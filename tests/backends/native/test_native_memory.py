"""The idle native core holds little memory."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from native_models import BASE, make

from paradecode.backends.native import backend as native_backend
from paradecode.core.errors import InvalidInput
from paradecode.serve.worker.memory import resident
from spans import span as native_span


@pytest.mark.skipif(resident() == 0 or sys.platform == "darwin", reason="says no current memory")
def test_idle_memory_does_not_follow_the_largest_forwards():
    """Freed logits leave little memory in use, however many large ones existed at once."""
    backend = make(replace(BASE, vocab_size=49152), threads=1)
    pages = [0, 1, 2, 3]
    several = [backend.forward([native_span(pages, [*range(64)])])[0].logits for _ in range(2)]
    before = resident()  # Of which two times 12.6 MB are the logits that are held here.
    several += [backend.forward([native_span(pages, [*range(64)])])[0].logits for _ in range(8)]
    assert resident() > before + 8 * 12e6
    several.clear()
    assert resident() < before + 16e6


@pytest.mark.parametrize("dtype", ["auto", "q4"])
def test_a_model_that_no_memory_holds_is_refused_before_it_is_read(monkeypatch, dtype):
    monkeypatch.setattr(native_backend, "physical_memory", lambda: 20_000)
    with pytest.raises(InvalidInput, match=r"dtype: .*GB, and this machine has 2e-05 GB: use q4"):
        make(BASE, dtype=dtype)
    for known in (None, 1 << 30):
        monkeypatch.setattr(native_backend, "physical_memory", lambda known=known: known)
        make(BASE, dtype=dtype).close()


LIMITED = """
import resource, sys
import numpy as np
from dataclasses import replace
sys.path[:0] = sys.argv[1:]
from naive import random_weights
from native_models import BASE, NativeBackend, Rope, make
from spans import span
from paradecode.core.errors import BackendError

def limit(megabytes):
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    most = resource.RLIM_INFINITY if megabytes is None else used + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
"""


@pytest.mark.first(1)
@pytest.mark.skipif(sys.platform != "linux", reason="limits and reads memory as Linux does")
@pytest.mark.parametrize(
    "code",
    [
        """
weights = random_weights(BASE)
limit(40 * 8)  # The stacks of some 40 threads.
try:
    NativeBackend(BASE, weights, threads=64)
except BackendError as error:
    assert "threads" in str(error), error
    limit(None)
    assert make(BASE, threads=4).forward([span([0], [1])])[0].logits.shape == (1, 100)
    print("done")
""",
        """
config = BASE.altered(hidden_size=32, layers=1, heads=4, kv_heads=4, head_dim=256,
                 rope=Rope(dim=256), intermediate_size=32, context_length=4096)
backend = make(config, dtype="f32", kv_dtype="f32", threads=1, pages=4)
rows, failed = 2048, 0
wide = span([0], [i % 100 for i in range(rows)], 0, slots=np.full(rows, -1, np.int32),
            logits=np.array([0], np.int32), mask=np.eye(rows, dtype=bool))
for megabytes in range(8, 400, 8):
    limit(megabytes)
    try:
        found = backend.forward([wide])[0].logits.numpy()
        break
    except MemoryError:
        failed += 1
assert failed > 1 and np.isfinite(found).all(), failed
print("done")
""",
        """
from paradecode.backends.native import _core
def linear(inputs, columns):
    tensor = np.full((inputs[0], columns), 0.1, np.float32)
    return _core.Network(inputs, [(0, [0], [0], 0, 0.0)], [tensor], "f32")
before, after = linear([4, 0], 3 * 8192 + 1), linear([8192, 1], 4)
block = (before, after, 8, 8, 1024, [0.5] * 512, 1e-6, None, None)
head = _core.DraftHead(width=4, enter=linear([3], 4), blocks=[block], outs=[linear([4], 8)],
                       back=None, to_target=[], mask=[], mask_token=0, threads=1)
memory, known = head.memory(), 0
def draft(rows):
    given = (memory, known, np.zeros((rows, 3), np.float32), np.zeros(rows, np.int64), known, 3, 2,
             2, 0.0, (0.0, 0, 1.0, 0.0), [])
    return head.draft([given])[0][0][0].tolist()
limit(300)
try:
    while True:
        first = draft(100)
        known += 100
except MemoryError:
    limit(None)
    assert known > 100 and draft(1) == first, known
    print("done")
""",
    ],
    ids=["threads", "scratch", "head"],
)
def test_what_finds_no_memory_fails_and_can_be_tried_again(code: str) -> None:
    given = [sys.executable, "-c", LIMITED + code, *map(str, Path(__file__).parents[:3])]
    ran = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
