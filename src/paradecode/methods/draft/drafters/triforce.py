"""TriForce: the target drafts with few keys, and a small model guesses ahead of that draft."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, TARGET, Forward, ModelFacts, Reply, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.contracts import LAST, DraftRows, Nodes, Proposal
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.source import NO_STATES, LevelRows, Looking, Path, PathRows
from paradecode.methods.parts import parameter

# Rows of the target that attend to few cached keys, and a small model that guesses ahead.

Running = Generator[Forward, Reply, None]

CHUNK = 8
"""Number of adjacent keys that are chosen together.

A higher value chooses faster, and less exactly.
"""
SINKS, WINDOW = 16, 240
"""Numbers of the first and of the latest keys that the small model attends to; more cost more."""
SHORT = 64
"""The most uncached tokens in a decoding step. If there are more, they are a prompt."""
MOST = 256 << 20
"""The most bytes of attention weights that all requests of a step may ask for."""


def farthest(facts: ModelFacts, neighbours: int = 0) -> int:
    """Return the most cached keys for which a row's attention weights may be read.

    ``neighbours`` is the number of other requests in the batch.
    """
    return MOST // (4 * facts.layers * facts.heads * (1 + neighbours))


def check(facts: ModelFacts, prompt: int, keys: int) -> None:
    """Raise InvalidInput if ``keys`` cached keys cannot be chosen after a prompt this long."""
    fix = ""
    if not facts.gives_attention:
        fix = "this backend gives no attention weights: use one process"
    elif prompt > max(keys, farthest(facts)):
        fix = f"it reads this model's attention to at most {farthest(facts)} tokens, not {prompt}"
    if fix:
        raise InvalidInput("decoder", "triforce", fix)


def chosen(shares: NDArray[np.floating], keys: int, recent: int) -> tuple[NDArray[np.int32], int]:
    """Return the chosen early slots, int32, ascending, and the slot from which on all are used.

    Args:
        shares: float [n], the attention weight that each cached key got.
        keys: number of slots to use.
        recent: number of latest slots that are used in any case.
    """
    end = max(len(shares) - recent, 0) // CHUNK * CHUNK
    chunks = shares[:end].reshape(-1, CHUNK).sum(1)
    chunks[:1] = np.inf  # The first keys are attention sinks.
    best = np.argsort(-chunks, kind="stable")[: max(keys - (len(shares) - end), 0) // CHUNK]
    slots = np.sort(best)[:, None] * CHUNK + np.arange(CHUNK)
    return slots.ravel().astype(np.int32), end


@dataclass
class TwoLevels(LevelRows):
    """The rows of one draft, which is a chain.

    The small model guesses the tokens that the target with few keys will draft. One forward pass of
    the target with few keys computes the row that is needed now, and the rows that are needed next
    if the guesses are right. The guesses change only the number of forwards, never the rows.

    Attributes:
        guesses: number of tokens that the small model guesses ahead.
        visible: cached slots of the target that its rows attend to; None means all.
        noise: True if guesses may use the random numbers with which the target samples.
        pace: number of forwards for each row that is needed, as a moving average over all drafts.
    """

    seq: TokenSequence
    limit: int
    guesses: int
    visible: NDArray[np.int32] | None
    noise: bool
    pace: float
    model = TARGET  # The small model reads no prompt: it has few keys.

    def __post_init__(self) -> None:
        seq = self.seq
        whole = tuple(range(seq.about().layers))
        self._target = PathRows(seq, TARGET, whole, self.visible)
        self._found: dict[tuple[str, Path], tuple[Logits, NDArray[np.float32]]] = {}
        self.depth = min(self.limit, (seq.scratch - len(seq.pending)) // (1 + self.guesses))
        if self.guesses:
            behind = len(seq.pending_for(DRAFT))
            held = len(seq.tokens) - behind
            self._small = PathRows(seq, DRAFT)
            if behind <= SHORT and held > SINKS + WINDOW:
                ends = np.arange(SINKS), np.arange(held - WINDOW, held)
                self._small.visible = np.concatenate(ends).astype(np.int32)

    def rows(self, seq: TokenSequence, limit: int) -> TwoLevels:
        return self

    def seconds(self, rows: int) -> float:
        keys = None if self.visible is None else len(self.visible)
        seconds = self.seq.step_seconds(1 + self.guesses, TARGET, keys) or 0.0
        if self.guesses:
            small = self.seq.step_seconds(1, DRAFT, SINKS + WINDOW) or 0.0
            seconds += self.guesses * small
        return self.pace * seconds

    def look(self, tree: TokenTree, leaves: Nodes, own: list[int], states: bool) -> Looking:
        path = tuple(tree.tokens_to(int(leaves[0])))
        missing = (TARGET, path) not in self._found
        if missing:
            guessed = yield from self._guessed(path)
            yield from self._run(self._target, (*path, *guessed), (LAST,) * states)
        self.pace += 0.1 * (missing - self.pace)
        return DraftRows(TARGET, *self._found[TARGET, path])

    def _run(self, rows: PathRows, path: Path, hidden: tuple[int, ...] = ()) -> Running:
        """Run the missing rows of a path in one forward, from the root on, and store the results.

        The results are the logits after each row and, if ``hidden`` is not empty, the last layer's
        hidden state.
        """
        ends = (path[:end] for end in range(len(path) + 1))
        missing = [each for each in ends if (rows.model, each) not in self._found]
        if missing:
            reply = yield rows.forward(missing, hidden=hidden)
            for row, each in enumerate(missing):
                state = reply.hidden[LAST][row - len(missing) :][:1] if hidden else NO_STATES
                self._found[rows.model, each] = reply.logits.select([row]), state

    def _guessed(self, path: Path) -> Generator[Forward, Reply, Path]:
        """Return the tokens that the small model guesses after ``path``."""
        guessed: Path = ()
        # The deepest row's next token is not needed.
        count = min(self.guesses, self.depth - 1 - len(path))
        while len(guessed) < count and self.seq.room_for(DRAFT) > len(path) + len(guessed):
            now = (*path, *guessed)
            yield from self._run(self._small, now)
            logits, _ = self._found[DRAFT, now]
            _, ids, _ = candidates(self.seq, logits, [list(now)], 1, None, self.noise)
            guessed = (*guessed, int(ids[0, 0]))
        return guessed


@drafter(
    "triforce",
    paper="TriForce: Lossless Acceleration of Long Sequence Generation",
    arxiv="2404.11912",
    url="https://github.com/Infini-AI-Lab/TriForce",
    names={"gamma": "num_speculative_tokens"},
)
class TriForce(ModelDrafter):
    """Three levels for long texts: a small model, the target with few keys, the target (Sun 2024).

    In a long text, reading keys and values costs more than reading the weights. The target
    therefore drafts with its own weights, but attends only to chosen chunks of 8 keys and to the
    latest keys. A small model, which attends to the first 16 keys and the latest 240, can guess
    ``guesses`` tokens ahead of the target's draft. By default there is no small model, and two
    levels.

    Draft tokens are sampled from the middle level, whatever the small model guessed, so every
    verifier stays exact. In the published code the middle level draws from its whole distribution
    where it rejects a guess, which is biased.

    The paper chooses chunks for each layer and head, by the mean of their keys times the prompt's
    last query. Here all layers and heads attend to the same chunks: the ones with the most
    attention of the last token, summed over all layers and heads. They are chosen anew every
    ``refresh`` tokens. If that would need more than 256 MB of attention weights in a step of all
    requests, the last chosen keys stay.

    When: texts of many thousands of tokens, where verifying several rows costs little more than
    one. On two cores every row's attention costs its own time, so little is gained there.
    """

    keys: int = parameter(1024, 8, 1 << 20, "number of cached keys with which the target drafts")
    recent: int = parameter(256, 0, 1 << 20, "number of the latest keys among them")
    guesses: int = parameter(0, 0, 16, "most tokens that the draft model is ahead; the paper has 1")
    refresh: int = parameter(32, 1, 1 << 20, "tokens after which the keys are chosen again")
    _asks: bool = field(default=False, init=False, repr=False)
    _due: int = field(default=0, init=False, repr=False)
    _early: NDArray[np.int32] | None = field(default=None, init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)
    _pace: float = field(default=1.0, init=False, repr=False)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        runs = (TARGET, DRAFT) if self.guesses else (TARGET,)
        return Needs(noise=True, draws=True, levels=True, runs=runs, rests=True)

    def check(self, seq: TokenSequence) -> None:
        check(seq.about(), seq.prompt_length, self.keys)
        if self.guesses and seq.about(DRAFT).vocabulary is not None:
            fix = "the small model needs the target's own tokens, or set guesses=0"
            raise InvalidInput("draft_model", "another vocabulary", fix)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        cached = len(seq.tokens) - len(seq.pending)
        if len(seq.pending) > min(limit, SHORT):
            return EMPTY  # A prompt.
        visible = None
        if cached > self.keys:
            few = cached <= farthest(seq.about(), seq.neighbours)
            self._asks = few and len(seq.tokens) >= self._due
            if self._early is None:
                return EMPTY
            visible = np.concatenate([self._early, np.arange(self._end, cached, dtype=np.int32)])
        rows = TwoLevels(seq, limit, self.guesses, visible, self.offer.noise, self._pace)
        calibration = seq.shared(f"triforce {self.keys}", Calibration)
        tree = yield from self.grow(seq, limit, rows, 1, calibration)
        self._pace = rows.pace
        return tree

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        rows = len(forward.tokens)
        if not self._asks or rows > SHORT:
            return (yield forward)
        self._asks = False
        reply = yield replace(forward, attention=np.array([rows - 1], np.int32))
        shares = np.sum([weights[0].sum(0) for weights in reply.attention.values()], axis=0)
        cached = len(shares) - rows - len(forward.tree)
        self._early, self._end = chosen(shares[:cached], self.keys, self.recent)
        self._due = cached + self.refresh
        return reply
