"""Opens many connections at once from one thread, sends their bytes, and waits for answers."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from paradecode.serve.server import room_for

CLOSED = 0
"""Stands for the status of a connection without an answer, or that is open at the end."""

PIECE = 1 << 16


def flood(host: str, port: int, each: Sequence[bytes], seconds: float, stay: bool) -> Counter[int]:
    """Send everything, and return the counts of the answers' statuses.

    Args:
        each: the bytes that each connection sends, which may be none.
        seconds: time after which all connections that have not ended are closed.
        stay: whether a connection that got an answer stays open until then.
    """
    room_for(len(each))
    selector, statuses, answers = selectors.DefaultSelector(), Counter[int](), dict[int, bytes]()
    both, end = selectors.EVENT_READ | selectors.EVENT_WRITE, time.monotonic() + seconds

    def over(ours: socket.socket) -> None:
        selector.unregister(ours)
        statuses[status(answers[ours.fileno()])] += 1
        ours.close()

    for sent in each:
        ours = socket.socket()
        ours.setblocking(False)
        ours.connect_ex((host, port))
        answers[ours.fileno()] = b""
        selector.register(ours, both if sent else selectors.EVENT_READ, sent)
    while selector.get_map() and time.monotonic() < end:
        for key, ready in selector.select(0.1):
            theirs, left = key.fileobj, key.data
            assert isinstance(theirs, socket.socket)
            try:
                if ready & selectors.EVENT_WRITE:
                    left = left[theirs.send(left[:PIECE]) :]
                    selector.modify(theirs, both if left else selectors.EVENT_READ, left)
                if ready & selectors.EVENT_READ:
                    piece = theirs.recv(PIECE)
                    answers[theirs.fileno()] += piece[:64]
                    if not piece or not stay:
                        over(theirs)
            except BlockingIOError:
                pass
            except OSError:
                over(theirs)
    for key in list(selector.get_map().values()):
        assert isinstance(key.fileobj, socket.socket)
        with suppress(OSError):
            over(key.fileobj)
    return statuses


def status(answer: bytes) -> int:
    """Return the status of an answer whose beginning has arrived; ``CLOSED`` if there is none."""
    found = answer.split(b" ", 2)
    return int(found[1]) if len(found) > 2 and found[1].isdigit() else CLOSED
