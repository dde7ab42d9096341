"""Chooses a replica for a request: one that has seen its beginning, unless that one is too busy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from paradecode.serve.wire import Generate

TEXT, TOKENS = 512, 128
"""Characters and tokens at the beginning of a prompt that count; later ones may differ."""

BALANCE = 1.25
"""A replica gets at most this many times its share of the requests that run."""

SLACK = 4
"""Requests up to which a replica is never too busy: small batches cost little."""


def prefix_key(model: str, request: Generate) -> str:
    """A digest of everything that requests must share to profit from one prefix cache."""
    prompt = request.prompt
    if prompt.tokens is not None:
        start = json.dumps(prompt.tokens[:TOKENS])
    elif prompt.text is not None:
        start = prompt.text[:TEXT]
    else:
        start = json.dumps([prompt.tools, prompt.messages])[:TEXT]
    return blake2b(repr((model, request.salt, start)).encode(), digest_size=16).hexdigest()


def ranking(key: str, replicas: Sequence[str]) -> list[str]:
    """Replicas in this key's order (rendezvous hashing, Thaler and Ravishankar 1998).

    When a replica comes or goes, only the keys that prefer it move.
    """
    return sorted(
        replicas,
        key=lambda replica: blake2b(f"{replica} {key}".encode(), digest_size=8).digest(),
        reverse=True,
    )


def choose(key: str, running: Mapping[str, int]) -> list[str]:
    """Replicas for a request, best first.

    The load is bounded as in "Consistent Hashing with Bounded Loads" (arXiv 1608.01350): the first
    replica in the key's order that has less than ``BALANCE`` times the mean gets the request.

    Args:
        key: see :func:`prefix_key`.
        running: replica -> requests that it has now.
    """
    bound = max(SLACK, math.ceil(BALANCE * (sum(running.values()) + 1) / max(len(running), 1)))
    order = ranking(key, list(running))
    free = [replica for replica in order if running[replica] < bound]
    busy = sorted(
        (replica for replica in order if running[replica] >= bound), key=running.__getitem__
    )
    return free + busy
