"""Choose a replica that has cached the beginning of a request's prompt, if it is not too busy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from paradecode.serve.wire import Generate

TEXT, TOKENS = 512, 128
"""The number of characters, or tokens, of a prompt's beginning that decide its replica."""

BALANCE = 1.25
"""A replica gets at most this many times its share of the running requests."""

SLACK = 4
"""Number of requests up to which a replica is never too busy, because small batches are cheap."""


def prefix_key(model: str, request: Generate) -> str:
    """Return a digest of what requests have to share to profit from the same prefix cache."""
    prompt = request.prompt
    if prompt.tokens is not None:
        start = json.dumps(prompt.tokens[:TOKENS])
    elif prompt.text is not None:
        start = prompt.text[:TEXT]
    else:
        start = json.dumps([prompt.tools, prompt.messages])[:TEXT]
    return blake2b(repr((model, request.salt, start)).encode(), digest_size=16).hexdigest()


def ranking(key: str, replicas: Sequence[str]) -> list[str]:
    """Return the replicas in this key's order (rendezvous hashing, Thaler and Ravishankar 1998).

    If a replica comes or goes, only the keys that prefer it get another first replica.
    """
    return sorted(
        replicas,
        key=lambda replica: blake2b(f"{replica} {key}".encode(), digest_size=8).digest(),
        reverse=True,
    )


def choose(key: str, running: Mapping[str, int]) -> list[str]:
    """Return the replicas for a request, the best first.

    The load is bounded as in "Consistent Hashing with Bounded Loads" (arXiv 1608.01350). The
    request goes to the first replica in the key's order with fewer than ``BALANCE`` times the mean
    number of requests.

    Args:
        key: see :func:`prefix_key`.
        running: replica -> number of its running requests.
    """
    bound = max(SLACK, math.ceil(BALANCE * (sum(running.values()) + 1) / max(len(running), 1)))
    order = ranking(key, list(running))
    free = [replica for replica in order if running[replica] < bound]
    busy = sorted(
        (replica for replica in order if running[replica] >= bound), key=running.__getitem__
    )
    return free + busy
