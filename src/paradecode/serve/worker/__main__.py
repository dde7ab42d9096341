"""``python -m paradecode.serve.worker``: settings on the first line of stdin, then messages."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from paradecode.backends.native import core_is_built
from paradecode.constraints.thoughts import OPEN
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.engine import cost
from paradecode.llm import LLM
from paradecode.methods.parts import known
from paradecode.models.safetensors_dir import INFILLED
from paradecode.search.scorers.scorer import find_scorer
from paradecode.search.strategies import strategies
from paradecode.serve.failures import failure
from paradecode.serve.lines import MAX_LINE
from paradecode.serve.log import PlacesOnly
from paradecode.serve.memory import spare_what_exists
from paradecode.serve.wire import WORKER, Drain, Ready
from paradecode.serve.worker.bits import bits
from paradecode.serve.worker.inbox import Inbox
from paradecode.serve.worker.loop import Loop, Message
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.worker.writer import EventWriter

SERVED, NOT_LOADED, BROKEN = 0, 2, 3
"""Exit statuses: the worker served to the end, could not load its model, or its engine failed."""


PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LOADED = b"pd-worker"
"""Name of a process that has a model, as the system shows it.

Others keep the interpreter's name.
"""


def main() -> int:
    end_with_front()
    logging.basicConfig()
    form = "%(asctime)s worker %(process)d %(levelname)s %(message)s"
    logging.root.handlers[0].setFormatter(PlacesOnly(form))
    # Only events are written to the pipe. Everything else that is printed goes to stderr.
    send = EventWriter(os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)

    try:
        warm()
        spare_what_exists()
        settings = WorkerSettings.read(sys.stdin.buffer.readline(MAX_LINE))
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_NAME, LOADED)
        gc.disable()  # Loading makes a million objects, and they stay.
        llm = load(settings)
        loop = Loop(llm, settings, send)
        if settings.warm:
            loop.warm()
        said = ready(llm, settings)
        gc.enable()
        spare_what_exists()
    except Exception as error:
        send([failure(WORKER, error)])
        return NOT_LOADED
    inbox: Inbox[Message] = Inbox(sys.stdin.buffer, loop.read)
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(Drain()))
    try:
        send([said])
        status = SERVED if loop.run(inbox) else BROKEN
    except BrokenPipeError:  # The front has gone.
        status = SERVED
    # The reading thread may hold stdin's lock for ever, so the interpreter must not wait for it.
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def end_with_front() -> None:
    """Let the system kill this process when the thread that started it ends.

    On systems other than Linux, the worker notices the end of stdin between two steps of the
    engine.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def warm() -> None:
    """Import what models and searches need, while this process is spare and has time."""
    known("drafter")
    strategies()
    with suppress(InvalidInput):  # If the core is needed, loading reports this.
        if core_is_built():
            import paradecode.backends.native.backend  # noqa: F401


def load(settings: WorkerSettings) -> LLM:
    own = {
        "limits", "queue_requests", "queue_tokens", "max_tokens", "python_constraints", "scorer",
        "costs", "warm",
    }  # fmt: skip
    cost.recalled.update(settings.costs)
    find_scorer(settings.scorer)  # A wrong scorer is refused now, and a right one loaded.
    return LLM(**settings.model_dump(exclude=own), limits=settings.engine_limits())


FIM = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""Tokens before a prefix, a suffix and the middle, for several families of models."""
GAP = ("", "<mask_1>", "<|endoftext|><sep><mask_1>")
"""The same for CodeGen2 (arXiv 2305.02309), whose suffix ends with several tokens."""


def fim_marks(known_token: Callable[[str], int | None]) -> list[str]:
    """Return what stands before a prefix, a suffix and the middle; empty if no gap is filled."""
    if None not in map(known_token, (*INFILLED, "<|endoftext|>")):
        return [*GAP]
    return next((list(marks) for marks in FIM if None not in map(known_token, marks)), [])


def ready(llm: LLM, settings: WorkerSettings) -> Ready:
    template = llm.chat_template
    models, measured = llm.engine.models, llm.engine.load
    curves = measured.others | ({} if measured.curve is None else {TARGET: measured.curve})
    return Ready(
        model=llm.model,
        families=list(llm.families),
        context_length=llm.config.context_length,
        vocab_size=llm.config.vocab_size,
        decoder=str(llm.decoder),
        draft_model=llm.draft_model,
        chat=template is not None,
        tools=template is not None and template.shows("tools"),
        thoughts=template is not None
        and llm.families == ("autoregressive",)
        and any(OPEN.decode() in source for source in template.sources.values()),
        fim=fim_marks(llm.tokenizer.token_id),
        bits=bits(llm, settings),
        costs={cost.name_of(models[name]): asdict(curve) for name, curve in curves.items()},
    )


if __name__ == "__main__":
    sys.exit(main())
