"""Tries to compile a grammar in another process, which the system can end.

The library's limits do not bound all of its work. The intersection of forty patterns takes it
minutes, and a thread cannot be stopped there, but a process can. The limit is on processor time, so
a busy machine accepts the same grammars as an idle one.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import threading
import time
from functools import lru_cache
from typing import Any

from paradecode.constraints.grammar import compile_grammar, grammar_of
from paradecode.constraints.limits import refused
from paradecode.core.errors import InvalidInput

SECONDS = 2
"""Seconds of processor time for one grammar.

The largest reasonable grammars take about half a second.
"""

MEMORY = 4 << 30
"""Bytes of address space that the process may use."""

KEPT = 256
"""Number of results in the cache."""


class GrammarTrial:
    """Checks whether grammars compile in time. Several threads may use it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()
        self._wrong = lru_cache(maxsize=KEPT)(self._try)

    def check(self, kind: str, value: object) -> None:
        """Raise InvalidInput if a constraint takes too long to compile.

        Args:
            kind, value: the same as for :meth:`paradecode.constraints.compile.Compiler.compile`.

        Raises:
            InvalidInput: if compiling takes too much time or memory, or fails.
        """
        try:
            grammar = grammar_of(kind, value)
        except ImportError:
            return  # The compiler's error names the package.
        wrong = self._wrong(grammar)
        if wrong:
            raise refused(value, wrong)

    def close(self) -> None:
        """End the process. The next check starts another one."""
        with self._turn:
            self._end()

    def _try(self, grammar: str) -> str:
        """Return the error of a grammar, or an empty text if it compiles in time."""
        with self._turn:
            try:
                said = self._ask(grammar)
            except BrokenPipeError:  # It died before it had read the grammar.
                self._end()
                said = self._ask(grammar)
            if said:
                return str(json.loads(said))
            self._end()
            return f"simplify it: compiling it takes more than {SECONDS} s or {MEMORY >> 30} GiB"

    def _ask(self, grammar: str) -> str:
        """Return the process's answer about a grammar, or "" if the process died over it."""
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(grammar) + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, str(SECONDS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Compile the grammar of each input line, and print its error, or "" if there is none.

    The system ends this process if a grammar takes too long.
    """
    from llguidance import LLTokenizer

    # A vocabulary of bytes is made at once, and the time to compile does not depend on it.
    tokenizer: Any = LLTokenizer("byte")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds, (_, most) = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_CPU)
    for line in sys.stdin:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, most))
        wrong = ""
        try:
            compile_grammar(json.loads(line), tokenizer, None)
        except InvalidInput as error:  # Reported before the engine compiles it.
            wrong = error.fix
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
