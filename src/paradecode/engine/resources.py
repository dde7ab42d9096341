"""Resources that the requests of one engine share: models, K/V pages, costs, learned stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from paradecode.backends.interface import (
    PAGE,
    Backend,
    KeepsStates,
    RunsHeads,
    RunsNetworks,
    windows_of,
)
from paradecode.core.checks import attributes, checked, flag, whole
from paradecode.core.decoder import TARGET
from paradecode.core.errors import CapacityError, InvalidInput, InvalidModel
from paradecode.core.head import Array, Head
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCorrection, CostCurve, Load, obtain
from paradecode.engine.kv import KVCache, first_key, slides
from paradecode.engine.pages import PagePool
from paradecode.engine.request import GenerationRequest
from paradecode.engine.states import StatePools
from paradecode.engine.stores import LearnedStores

if TYPE_CHECKING:
    from paradecode.models.text_stream import NewTextStream
    from paradecode.models.weights import Weights

AHEAD = 64
"""Number of tokens after a draft for which a call of several steps takes pages.

A higher number takes pages less often.
"""
MOST_HEADS = 4
"""Number of draft heads that stay in memory. If there are more, the oldest is dropped."""


@dataclass(frozen=True)
class Limits:
    """Sizes that are fixed when the engine starts.

    Attributes:
        batch: largest number of sequences that run at the same time.
        step_tokens: largest number of rows of one packed forward pass; longer prompts are split.
        kv_tokens: K/V slots of each model, for all sequences and the prefix cache together.
        draft_tokens: slots reserved for the tentative rows of each running sequence.
        learned_bytes: largest size in bytes of all data that methods learned from all tenants,
            together with the hidden states that methods store for draft heads. The hidden states
            are dropped first.
        prefix_cache: True if prompts reuse the keys and values of earlier requests.
    """

    batch: int = checked(whole(1, 4096), 64)
    step_tokens: int = checked(whole(1, 1 << 20), 512)
    kv_tokens: int = checked(whole(PAGE, 1 << 30), 32768)
    draft_tokens: int = checked(whole(0, 4096), 64)
    learned_bytes: int = checked(whole(0, 1 << 40), 128 << 20)
    prefix_cache: bool = checked(flag, True)

    def __post_init__(self) -> None:
        attributes(self)


@dataclass(eq=False)
class Resources:
    """The models with their pages, and data that is measured or learned across requests.

    Args:
        curve: measured cost of a target forward pass here; without it methods verify all that they
            draft.
        measured: True loads the cost curve of each model, or measures it if none is saved. The
            target's curve is then corrected while the engine runs.

    Attributes:
        models: backends by name; the output follows the distribution of ``target``.
        limits: sizes fixed at the start.
        new_text: makes a detokeniser for one output; without it there is no text and no stop text.
        vocabularies: vocabularies of the models whose tokens differ from the target's.
        weights: the target's weights, for draft heads that share its embedding or its LM head.
        heads: the backend that runs draft heads; None means the target's.
        apart: True if the models have threads of their own, so that two can run at the same time.
        config: configuration of the target.
        pools: the pages of each model; windows of its layers have further pools (``kinds``).
        states: pools of records and states of the models with recurrent layers.
        load: the sequences and rows of the current steps, and their costs.
        correction: corrects the target's cost curve by measured forwards; None corrects nothing.
        stores: data that methods have learned from each tenant's requests.
    """

    models: Mapping[str, Backend]
    limits: Limits = Limits()
    new_text: NewTextStream | None = None
    curve: InitVar[CostCurve | None] = None
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    heads: RunsNetworks | None = None
    apart: bool = False
    measured: InitVar[bool] = False

    def __post_init__(self, curve: CostCurve | None, measured: bool) -> None:
        self.config = self.models[TARGET].config
        pages = -(-self.limits.kv_tokens // PAGE)
        self.pools = {
            name: PagePool(pages, windows_of(backend.config))
            for name, backend in self.models.items()
        }
        self.states: dict[str, StatePools] = {}
        for name, backend in self.models.items():
            backend.reserve(pages)
            if isinstance(backend, KeepsStates) and backend.config.keeps_states:
                pools = self.states[name] = StatePools(backend.config, pages, self.limits.batch)
                backend.reserve_states(pools.records.count, pools.states.count)
        self.load = Load(curve)
        self.correction: CostCorrection | None = None
        if measured:
            costs = {name: obtain(backend, pages) for name, backend in self.models.items()}
            self.correction = CostCorrection(costs.pop(TARGET))
            self.load = Load(self.correction.curve, costs)
        self.stores = LearnedStores(self.limits.learned_bytes)
        self._reserved = 0
        self._heads: dict[tuple[str, int, str, str], Head] = {}

    @property
    def unreserved(self) -> int:
        """The number of pages of each model that no running request has reserved."""
        return self.pools[TARGET].count - self._reserved

    def reserve(self, pages: int) -> None:
        """Reserve pages of each model for a running request; a negative number gives them back."""
        self._reserved += pages

    def reserve_for_forks(self, pages: int) -> None:
        """Reserve further pages for the forks of a running request.

        Raises:
            CapacityError: if too few pages are left.
        """
        if pages > self.unreserved:
            raise CapacityError(
                f"the forks can need {pages} more K/V pages, {self.unreserved} are not set aside "
                "for others; fork less, lower max_tokens or raise kv_tokens"
            )
        self.reserve(pages)

    def pages_for(self, request: GenerationRequest) -> int:
        """Return the largest number of pages that a request can hold in one model."""
        whole = self.whole_pages(request)
        return max(min(whole, self._most_pages(name) or whole) for name in self.models)

    @property
    def longest(self) -> int:
        """The most K/V slots that one request can have; sliding windows do not bound it."""
        counts = [pool.count for name, pool in self.pools.items() if not self._most_pages(name)]
        return min(counts, default=1 << 32) * PAGE

    def _most_pages(self, model: str) -> int:
        """Return the most pages of a request under sliding windows; 0 if they do not bound it."""
        window = self.pools[model].window
        if not window or not slides(self.models[model].config):
            return 0
        rows = max(self.limits.step_tokens, AHEAD) + self.limits.draft_tokens
        return -(-(window + rows) // PAGE) + 3  # Two partial pages, and one for copies.

    def whole_pages(self, request: GenerationRequest) -> int:
        """Return the number of pages for all tokens of a request.

        One of these pages is for copies; draft rows follow the tokens.
        """
        block = max(self.config.block_length, 1)  # A canvas ends with a whole block.
        end = -(-(len(request.prompt) + request.params.max_tokens) // block) * block
        end = min(end, self.config.context_length)
        return -(-(end + self.scratch_for(request)) // PAGE) + 1

    def scratch_for(self, request: GenerationRequest) -> int:
        """Return the number of slots for the draft rows of a request; 0 if its method forks."""
        return 0 if request.forks else self.limits.draft_tokens

    def head(self, path: str, vocabulary: int, dtype: str, model: str = TARGET) -> Head:
        """Return a draft head, which is read and packed at the first call; raise InvalidModel."""
        found = self._heads.get(key := (path, vocabulary, dtype, model))
        if found is None:
            from paradecode.models.heads import build_head, read_head

            def target(name: str) -> Array:
                if name not in self.weights or model != TARGET:
                    raise InvalidModel(name, path, f"the head lacks it, and so does the {model}")
                return self.weights[name].float32()

            config = self.models[model].config
            found = build_head(read_head(path), config, target, vocabulary).held_in(dtype)
            while len(self._heads) >= MOST_HEADS:
                del self._heads[next(iter(self._heads))]
            self._heads[key] = found
            place = self.heads or self.models[TARGET]
            if isinstance(place, RunsHeads):
                place.pack(found)
        return found

    def open_cache(self, model: str, request: GenerationRequest) -> KVCache:
        """Make an empty cache of one model; raise InvalidInput if the model was not loaded."""
        if model not in self.models:
            raise InvalidInput(f"{model}_model", None, "load one: the method needs it")
        cache = KVCache(
            self.models[model],
            self.pools[model],
            first_key(request.salt, model),
            self.scratch_for(request),
            self.whole_pages(request) * PAGE,
            self._most_pages(model),
            self.states.get(model),
        )
        cache.reusable = cache.reusable and self.limits.prefix_cache
        return cache
