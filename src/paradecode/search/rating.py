"""The scores of branches, computed at once or when the engine has read their hidden states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.engine.engine import Engine
from paradecode.engine.prompt import LastStateReader, reading_request
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.search.branch import Branch
from paradecode.search.scorers.scorer import BranchScorer, Rated, ReadsStates


class Rating:
    """The computation of scores. The constructor queues requests that read hidden states, if
    needed.

    Args:
        request: request of the search.
        prompt: text of its prompt.
        branches: the branches to rate.

    Attributes:
        sequences: sequences that read the branches' states; the prefix cache has most rows.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        scorer: BranchScorer,
        prompt: str,
        branches: Sequence[Branch],
    ) -> None:
        self._request, self._scorer, self._prompt = request, scorer, prompt
        self.branches, self._readers = branches, list[LastStateReader]()
        self.sequences: list[LiveSequence] = []
        if scorer.reads == "states":
            network = cast(ReadsStates, scorer).network
            for branch in branches:
                tokens = [*request.prompt.tolist(), *branch.tokens]
                if branch.tokens and tokens[-1] in engine.config.eos_tokens:
                    del tokens[-1]  # No state behind it means anything.
                reader = LastStateReader(network)
                self._readers.append(reader)
                asked = reading_request(
                    engine.config, tokens[: engine.config.context_length - 1], reader,
                    priority=request.priority, salt=request.salt, owner=request.owner,
                )  # fmt: skip
                self.sequences.append(engine.add(asked))

    @property
    def ready(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)

    def scores(self) -> list[float]:
        """The score of each branch, a finite number.

        Raises:
            InvalidInput: if the scorer returned something else.
            Exception: raised by the scorer, or the error that ended the reading.
        """
        for sequence in self.sequences:
            if sequence.error is not None:
                raise sequence.error
        outputs = [reader.output for reader in self._readers]
        read = np.stack(outputs) if outputs else np.empty((0, 0), np.float32)
        rated = Rated(self._prompt, self._request.prompt, self.branches, read)
        scores = list(self._scorer.rate(rated))
        if len(scores) != len(self.branches):
            fix = f"it must give {len(self.branches)} scores, one for each output"
            raise InvalidInput("scorer", scores, fix)
        for score in scores:
            if isinstance(score, bool) or not isinstance(score, (int, float, np.number)):
                raise InvalidInput("scorer", score, "it must give numbers")
            if not math.isfinite(score):
                raise InvalidInput("scorer", score, "it must give finite numbers")
        return [float(score) for score in scores]
