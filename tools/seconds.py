"""Measures the seconds of the build and of the tests, in a bare clone of the last commit.

python -m tools.structure --seconds

Nothing else may run on the machine, and pip's cache must be full. The result also has the machine's
load before the first command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from paradecode_lab.measure.machine import stamp

ROOT = Path(__file__).parents[1]
STEPS = {
    "build of `make demo`": ("make .venv/.installed", ""),
    "the demo itself": ("make demo", ""),
    "`make core` after a change of one file": ("make core", "csrc/plan.cpp"),
    "`make core` after a change of a kernel set": ("make core", "csrc/simd_*.hpp"),
    "build of `make test`": ("make .venv/.installed-dev", ""),
    "tests of `make test`": ("make test", ""),
}
"""Name of a step -> its command, and a pattern of the files that are changed before it.

The steps run in this order: `make core` has only the kernel set of the demo, and `make test`
compiles only the portable one.
"""


def seconds(steps: Mapping[str, tuple[str, str]] = STEPS) -> dict[str, str]:
    """Return the seconds of each step, and the machine, its load and the commit.

    If a command fails, its result says so, and the next steps run.
    """
    now = stamp(ROOT)
    found = {
        "machine": f"{now['machine'].cpu}, {now['machine'].cores} cores",
        "load of the machine before": f"{os.getloadavg()[0]:.1f}",
        "commit": now["commit"],
    }
    with TemporaryDirectory() as folder:
        clone = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), folder]
        subprocess.run(clone, check=True)
        for name, (command, changed) in steps.items():
            for file in Path(folder).glob(changed) if changed else ():
                file.write_text(file.read_text("utf-8") + "// A change.\n", "utf-8")
            began = time.perf_counter()
            # The commands' output goes to stderr, apart from the figures.
            status = subprocess.run(shlex.split(command), cwd=folder, stdout=sys.stderr).returncode
            found[name] = f"{time.perf_counter() - began:.1f} s"
            if status:
                found[name] += f", and it failed with status {status}"
    return found
