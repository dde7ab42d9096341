"""The program `paradecode`, also as `python -m paradecode`."""

from __future__ import annotations

import gc
import os
import sys

from paradecode import __version__


def main() -> None:
    """Run a command; the version needs no further import, and Ctrl-C is quiet during imports."""
    if sys.argv[1:] == ["--version"]:
        print(f"paradecode {__version__}")
        return
    if sys.argv[1:2] == ["methods"]:  # Threads of NumPy would spin, and a list computes nothing.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # What is imported stays; `LaterCommand.load` ends this.
    try:
        from paradecode.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.enable()


if __name__ == "__main__":
    main()
