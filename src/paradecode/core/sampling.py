"""Sampling parameters, and the sampler that turns logits into the tokens of plain decoding.

Sampling is coupled: the token at a position is the argmax of the warped log-probabilities plus
Gumbel random numbers, which depend only on seed and position. A draft token is accepted exactly if
it equals that token. So verification follows one rule at every temperature, and a seeded request
gives the same tokens with any exact decoder. Penalties and bans are computed along the path of each
tree node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import (
    attributes,
    checked,
    flag,
    known,
    listed,
    maybe,
    number,
    own_names,
    text,
    whole,
)
from paradecode.core.constraint import Matcher
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Bias, Logits, Warp
from paradecode.core.noise import MASK64, Purpose, key, mix

MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_LOGIT_BIAS = 1024
MAX_TOKENS = 1 << 20
ALIASES = {
    "gen_length": "max_tokens", "gen_len": "max_tokens", "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}  # fmt: skip
"""Names used by the models' own scripts and by other engines -> names of our parameters."""

MIN_TEMPERATURE = 1e-5
"""Lower temperatures count as 0: dividing by them could overflow, and sampling is greedy anyway."""


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters of a request; names and meanings follow OpenAI and vLLM.

    Attributes:
        max_tokens: upper bound on generated tokens; the context length bounds it as well.
        min_tokens: EOS and stop tokens are banned until this many tokens have been generated.
        temperature: 0 is greedy, and so are values below 1e-5.
        top_k: 0 keeps all tokens (-1 is accepted for the same).
        top_p: nucleus mass, in (0, 1].
        min_p: least probability relative to the best token, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of every token of the
            prompt or the output (Keskar et al. 2019, CTRL); 1 is off.
        presence_penalty, frequency_penalty: subtracted once, and once per occurrence, for tokens of
            the output.
        logit_bias: token id -> the number that is added to its logit.
        stop: texts that end the output; they are removed from it.
        stop_token_ids: further ids that end the output, besides the model's own EOS ids.
        ignore_eos: True treats EOS as an ordinary token.
        seed: 64-bit; the same seed gives the same tokens with any exact decoder and any batch.
        n: number of outputs for the prompt.
        logprobs: number of top log-probabilities to report per token; None reports none, 0 only the
            chosen token's. They are from the model's own distribution, before penalties and
            temperature.

    Raises:
        InvalidInput: on construction, if a value is of the wrong type or out of range.
    """

    max_tokens: int = checked(whole(1, MAX_TOKENS), 256)
    min_tokens: int = checked(whole(0, MAX_TOKENS), 0)
    temperature: float = checked(number(0.0, 100.0), 0.0)
    top_k: int = checked(whole(-1, 1 << 31), 0)
    top_p: float = checked(number(0.0, 1.0, above=True), 1.0)
    min_p: float = checked(number(0.0, 1.0), 0.0)
    repetition_penalty: float = checked(number(0.01, 100.0), 1.0)
    presence_penalty: float = checked(number(-100.0, 100.0), 0.0)
    frequency_penalty: float = checked(number(-100.0, 100.0), 0.0)
    logit_bias: Mapping[int, float] | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = checked(flag, False)
    seed: int | None = checked(maybe(whole(-(1 << 63), MASK64)), None)
    n: int = checked(whole(1, MAX_N), 1)
    logprobs: int | None = checked(maybe(whole(0, MAX_TOP_LOGPROBS)), None)

    def __post_init__(self) -> None:
        attributes(self)
        if self.min_tokens > self.max_tokens:
            raise InvalidInput("min_tokens", self.min_tokens, "give at most max_tokens")
        if self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        stop, ids = self.stop, self.stop_token_ids
        texts = _STOPS("stop", [stop] if isinstance(stop, str) else stop)
        object.__setattr__(self, "stop", tuple(texts))
        ids = _IDS("stop_token_ids", [*ids] if isinstance(ids, (set, frozenset)) else ids)
        object.__setattr__(self, "stop_token_ids", tuple(ids))
        self._check_bias()

    def _check_bias(self) -> None:
        bias = self.logit_bias
        if bias is None:
            return
        if not isinstance(bias, Mapping) or len(bias) > MAX_LOGIT_BIAS:
            raise InvalidInput(
                "logit_bias", bias, f"map at most {MAX_LOGIT_BIAS} token ids to numbers"
            )
        clean = {}
        for token, value in bias.items():
            if isinstance(token, str) and token.isdecimal() and len(token) < 11:
                token = int(token)  # JSON objects have text keys.
            _TOKEN("logit_bias", token)
            clean[int(token)] = number(-1000.0, 1000.0)(f"logit_bias[{token}]", value)
        object.__setattr__(self, "logit_bias", clean)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build the parameters from a mapping; :data:`ALIASES` are translated.

        Raises:
            InvalidInput: if a name is unknown, or a value is unusable.
        """
        values = own_names(values, ALIASES)
        known((field.name for field in fields(cls)), values, "sampling parameter")
        return cls(**values)

    @property
    def penalised(self) -> bool:
        """True if tokens that have already occurred get a penalty."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def warp(self) -> Warp:
        return Warp(self.temperature, self.top_k, self.top_p, self.min_p)

    def check_vocabulary(self, size: int) -> None:
        """Raise InvalidInput if a token id is not in the vocabulary, or no token may come first."""
        named = {"logit_bias": self.logit_bias or (), "stop_token_ids": self.stop_token_ids}
        for name, ids in named.items():
            for token in ids:
                if token >= size:
                    raise InvalidInput(name, token, f"give token ids below {size}")
        if self.min_tokens and len(set(self.stop_token_ids)) == size:
            fix = f"all {size} tokens are stop_token_ids, which it bans: give 0, or leave one out"
            raise InvalidInput("min_tokens", self.min_tokens, fix)

    def for_choice(self, index: int) -> SamplingParams:
        """Return the parameters of output ``index`` out of ``n``; output 0 has the same seed."""
        if self.seed is None or index == 0:
            return replace(self, n=1)
        return replace(self, n=1, seed=key(self.seed, index, Purpose.CHILD_SEED))


_TOKEN = whole(0, 1 << 31)
_IDS = listed(_TOKEN, MAX_LOGIT_BIAS)
_STOPS = listed(text(MAX_STOP_LENGTH, least=1), MAX_STOPS)


def penalties(
    params: SamplingParams, values: NDArray[Any], counts: NDArray[np.integer]
) -> NDArray[Any]:
    """Return the numbers that penalties add to the logits of tokens that have occurred.

    Args:
        values: float [..., m], logits of m tokens of the prompt or the output.
        counts: int [m], how often each of the m tokens is in the output.

    Returns:
        float [..., m]. The repetition penalty does not change infinite logits of banned tokens.
    """
    changes = np.zeros_like(values)
    if params.repetition_penalty != 1.0:
        factor = values.dtype.type(params.repetition_penalty)
        with np.errstate(invalid="ignore"):
            changes = np.where(values > 0, values / factor, values * factor) - values
        changes[~np.isfinite(values)] = 0.0
    once, each = params.presence_penalty, params.frequency_penalty
    return changes - np.where(counts, once + each * counts, 0.0)


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        params: sampling parameters with a ``seed``.
        prompt: int32 [n], the prompt's tokens.
        stop_ids: every token id that ends the output.
        matcher: state of the constraint on the output, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        stop_ids: Sequence[int],
        matcher: Matcher | None = None,
    ) -> None:
        self.warp, self.matcher = params.warp, matcher
        self.params = params
        self.stop_ids = np.array(sorted(stop_ids), np.int32)
        self.seed = mix((params.seed or 0) & MASK64)
        self.start = len(prompt)
        self.generated = 0
        self._penalised = params.penalised
        self._seen = set(prompt.tolist()) if params.repetition_penalty != 1.0 else set()
        self._counts: Counter[int] = Counter()
        self._static = dict(params.logit_bias or {})

    def advance(self, tokens: Sequence[int]) -> None:
        """Update the counts and the matcher after ``tokens`` were committed."""
        self.generated += len(tokens)
        if self._penalised:
            self._counts.update(tokens)
        if self.matcher is not None:
            self.matcher.advance(tokens)

    def noise_key(self, offset: int, purpose: Purpose = Purpose.TOKEN) -> int:
        """Return the key of the random numbers ``offset`` tokens after the next position."""
        return key(self.seed, self.start + self.generated + offset, purpose)

    def bias(self, logits: Logits, path: Sequence[int]) -> Bias | None:
        """Return the sum of penalties, bans and ``logit_bias`` for one row of logits, or None.

        ``path`` is the list of draft tokens between the last committed token and the row. Bias and
        penalties are added first; then ``min_tokens`` and the constraint ban tokens. None means
        that they add nothing.
        """
        allowed = None if self.matcher is None else self.matcher.mask(path)
        banned = self._too_short(path)
        if banned and allowed is not None:  # A text that can only end here may be too short.
            banned = bool(np.delete(allowed, self.stop_ids).any())
        added = self._added(logits, path, banned)
        if allowed is None:
            return added
        forbidden = np.flatnonzero(~allowed).astype(np.int32)
        if added is None:
            return forbidden, np.full(len(forbidden), -np.inf, np.float32)
        values = np.zeros(len(allowed), np.float32)
        values[forbidden] = -np.inf
        values[added[0]] += added[1]
        ids = np.flatnonzero(values).astype(np.int32)
        return ids, values[ids]

    def _too_short(self, path: Sequence[int]) -> bool:
        """Return whether the output may not end after ``path`` because of ``min_tokens``."""
        return self.generated + len(path) < self.params.min_tokens and len(self.stop_ids) > 0

    def _added(self, logits: Logits, path: Sequence[int], banned: bool) -> Bias | None:
        """Return the sum of ``logit_bias`` and penalties; stop tokens are banned if ``banned``."""
        if not (self._penalised or self._static or banned):
            return None
        added = dict(self._static)
        if self._penalised:
            counts = self._counts + Counter(path) if path else self._counts
            ids = np.array(sorted(self._seen | set(counts)), np.int32)
            values = logits.gather(ids[None, :])[0].astype(np.float64)
            occurred = np.array([counts[token] for token in ids.tolist()])
            changes = penalties(self.params, values, occurred)
            for token, change in zip(ids.tolist(), changes.tolist(), strict=True):
                added[token] = added.get(token, 0.0) + change
        if banned:
            for token in self.stop_ids.tolist():
                added[token] = -math.inf
        ids = np.fromiter(added.keys(), np.int32, len(added))
        return ids, np.fromiter(added.values(), np.float32, len(added))

    @property
    def bare(self) -> bool:
        """True if no bias, penalty, ban or constraint changes any row of logits from now on."""
        return (
            self.matcher is None
            and not self._penalised
            and not self._static
            and self.generated >= self.params.min_tokens
        )

    @property
    def plain(self) -> bool:
        """True if every token is the argmax of the model's own logits."""
        return self.warp.temperature == 0.0 and self.bare

    def processed(self, logits: Logits, row: int, path: Sequence[int]) -> Logits:
        """Return one row of ``logits`` with bias, penalties and bans for ``path``."""
        one = logits.select([row])
        bias = self.bias(one, path)
        return one if bias is None else one.with_bias([bias])

    def token(self, logits: Logits, row: int, path: Sequence[int] = ()) -> int:
        """Return the token that plain decoding emits after the committed tokens and ``path``."""
        keys = [self.noise_key(len(path))]
        if self.matcher is not None and not self.warp.filters:
            # If the constraint allows the best token, it is the best allowed one. This does not
            # hold with filters such as top-p, which depend on the allowed tokens.
            one = logits.select([row])
            added = self._added(one, path, self._too_short(path))
            biased = one if added is None else one.with_bias([added])
            free = int(biased.sample(self.warp, keys)[0])
            if self.matcher.allows(path, free):
                return free
        return int(self.processed(logits, row, path).sample(self.warp, keys)[0])

    def token_behind(self, logits: Logits, row: int, path: Sequence[int]) -> int | None:
        """Return :meth:`token`, or None if no token may follow ``path``.

        Such a path is never committed. If the output itself gets there, :meth:`token` raises the
        error.
        """
        try:
            return self.token(logits, row, path)
        except InvalidInput:
            if not path:
                raise
            return None
