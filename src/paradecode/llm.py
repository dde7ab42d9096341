"""The public front: load a model once, then generate, chat or stream with any method."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from paradecode.backends import open_backend
from paradecode.backends.drafting import DraftPlace
from paradecode.backends.interface import Progress
from paradecode.completion import (
    Chunk,
    Completion,
    Ranked,
    chunk_of,
    ranked,
    with_alternatives,
)
from paradecode.constraints.compile import Compiler
from paradecode.core.checks import known, whole
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import ALIASES, SamplingParams
from paradecode.core.sequence import DRAFT, TARGET
from paradecode.core.trace import TokenLogprob
from paradecode.engine.cost import obtain
from paradecode.engine.drift import Drift
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.prompt import PromptReader, reading_request, unit_means
from paradecode.engine.ranking import CandidateReader
from paradecode.engine.request import GenerationRequest, token_ids
from paradecode.engine.run import run
from paradecode.methods.choice import (
    AUTO,
    Decoder,
    Profile,
    check_draft_model,
    choose,
    spec_for,
    with_settings,
)
from paradecode.methods.draft.ngram_table import said_tokens
from paradecode.methods.registry import Spec
from paradecode.models.adapter import merge_file
from paradecode.models.catalogue import open_model
from paradecode.models.vocabulary import match, trim
from paradecode.search import search_together
from paradecode.search.scorers.follows import Follows

REQUEST_SETTINGS = {"priority", "deadline", "salt", "owner", "prediction", "constraint"}


class LLM:
    """A model, ready to answer.

    Args:
        model: a catalogue name, a ``.gguf`` file, a folder of safetensors, or a hub name; None is
            the default model.
        decoder: the method, as a spec string (``"prompt-lookup(max_ngram=4)"``), a mapping with
            ``method``, or None for plain decoding (``greedy``; ``static`` for a diffusion model);
            each call may choose another. ``auto`` is ``prompt-lookup``, which is exact (for the
            default model with the table of n-grams that comes with it), and for a diffusion model
            ``threshold``, which is not.
        speculative_config: the same under vLLM's name; give one of the two.
        profile: a file that ``paradecode tune`` wrote, in place of both.
        draft_model: the small model of methods that need one (``draft-model``, ``pearl``), named
            like ``model``; a spec may name it too: ``{"method": "draft-model", "model": ...}``.
            Its tokenizer may differ.
        draft_vocabulary: a table of n-grams (a file of ``paradecode train ngram-table``, or the
            name of one of the package's): the draft model says only tokens that are named there,
            and its LM head has only their rows. None: it says all.
        backend, dtype, device, threads: see :func:`paradecode.backends.open_backend`.
        draft_threads: CPU threads that what drafts has for itself (native, or on a
            ``draft_device``). A draft model then drafts while the target verifies (``pearl``,
            ``mirror-sd``), and the target has the cores that are left, unless ``threads`` says
            otherwise. A draft head takes turns with the target. None: the target's
            threads, or on the CPU as a ``draft_device`` as many.
        draft_device: ``cpu``, ``cuda`` or ``cuda:N``, where PyTorch runs draft models and draft
            heads, while the target stays where it is. None: where the target runs.
        ranks: processes, one a GPU, that divide the model (tensor parallelism, torch only); the
            draft model stays whole on the first.
        adapter: a file of ``paradecode train adapt``, merged into the model in float32, which makes
            it a block diffusion model.
        limits: sizes of the engine (batch, K/V memory, prefix cache).
        progress: told how many bytes of how many of a model are loaded (native only).

    Raises:
        InvalidInput: for settings that are not understood.
        InvalidModel: for a model that cannot be loaded.

    Calls are safe from several threads: they take turns. Use as a context manager, or call
    :meth:`close`, to free the memory early.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        decoder: Decoder = AUTO,
        speculative_config: Mapping[str, Any] | None = None,
        profile: str | PathLike[str] | None = None,
        draft_model: str | PathLike[str] | None = None,
        draft_vocabulary: str | PathLike[str] | None = None,
        backend: str = "auto",
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        draft_threads: int | None = None,
        draft_device: str | None = None,
        ranks: int = 1,
        adapter: str | PathLike[str] | None = None,
        limits: Limits | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        # Refuse what is bad before a model is loaded.
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidInput("limits", limits, "give Limits(batch=..., kv_tokens=...)")
        tuned = choose(decoder, speculative_config, profile)
        chosen = tuned.spec if isinstance(tuned, Profile) else tuned
        self.draft_model = None if draft_model is None else fspath(draft_model)
        if isinstance(chosen, Spec):
            self.draft_model = self.draft_model or chosen.draft_model
            check_draft_model(chosen, self.draft_model)
        if draft_vocabulary is not None and self.draft_model is None:
            fix = "name a draft_model, which it is for"
            raise InvalidInput("draft_vocabulary", fspath(draft_vocabulary), fix)
        place = DraftPlace(draft_device, draft_threads)
        checkpoint = open_model(model if model is None else fspath(model))
        if adapter is not None:
            checkpoint = merge_file(checkpoint, Path(adapter))
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        self.chat_template, self.model = checkpoint.chat_template, checkpoint.config.name
        self.decoder = self._spec(chosen)
        if isinstance(tuned, Profile) and tuned.model != self.model:
            said = f"the profile was tuned for {tuned.model}, not {self.model}"
            warnings.warn(said, stacklevel=2)
        if self.draft_model is not None:
            threads = place.left(threads)
        open_here = partial(open_backend, backend, dtype=dtype, device=device, progress=progress)
        self._norm = checkpoint.weights["norm"].float32()
        self.backend = open_here(
            checkpoint.config, checkpoint.weights, threads=threads, ranks=ranks
        )
        models, vocabularies = {TARGET: self.backend}, {}
        heads = place.open_heads(self.backend, threads)
        if self.draft_model is not None:
            draft = open_model(self.draft_model)
            sizes = self.config.vocab_size, draft.config.vocab_size
            matched = match(self.tokenizer, draft.tokenizer, *sizes)
            if draft_vocabulary is not None:
                named = said_tokens(fspath(draft_vocabulary), self.config.vocab_size)
                draft, matched = trim(draft, matched, named)
            if matched is not None:
                vocabularies[DRAFT] = matched
            models[DRAFT] = place.open_model(draft.config, draft.weights, threads, open_here)
        self.engine = Engine(
            models, limits, self.tokenizer.stream, vocabularies=vocabularies,
            weights=checkpoint.weights, heads=heads,
        )  # fmt: skip
        self.engine.apart = place.apart
        costs = {name: obtain(one, self.engine.pools[name].count) for name, one in models.items()}
        self.engine.load.curve = costs.pop(TARGET)
        self.engine.drift = Drift(self.engine.load.curve)
        self.engine.load.others = costs
        for part in (self.decoder, *self.decoder.parts):
            own = part.settings
            if own.get("head"):  # So that no request waits until it is read and packed.
                self.engine.head(own["head"], own.get("vocabulary", 0), own.get("dtype", "q8"))
        self._compiler = Compiler(self.tokenizer, self.config.vocab_size, self.config.eos_tokens)
        self._turn = threading.RLock()

    @overload
    def generate(
        self, prompts: str, params: SamplingParams | None = ..., **settings: Any
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = ...,
        **settings: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        **settings: Any,
    ) -> Completion | list[Completion]:
        """Continue prompts, given as raw text or token ids (see :meth:`chat` for conversations).

        Args:
            prompts: one text, or a list of texts or of lists of token ids, run as one batch.
            params: how to sample; or give its fields as keywords, e.g. ``max_tokens=64``.
            settings: fields of :class:`SamplingParams`, and ``decoder``, ``priority``,
                ``deadline`` (seconds), ``salt`` and ``prediction`` (a text or token ids that the
                output will probably be, for methods that use it) of the request; ``constraint``,
                what the output must be: ``{"type": "json_schema", "value": {...}}`` and others
                (see :meth:`paradecode.constraints.compile.Compiler.compile`); and settings of
                the method, such as ``steps=64, block_length=32``. ``gen_length`` is ``max_tokens``.
                ``search``, such as ``best-of(n=8)``, makes several outputs and returns the one that
                it prefers, and ``scorer`` is what it may prefer by: a spec such as
                ``reward-model(path=...)``, a function (:data:`paradecode.search.Scorer`), or a
                constraint that the output should follow.

        Returns:
            A completion for one text, a list for a list. In a list a failed request has
            ``finish_reason`` ``error`` and does not disturb the others.

        Raises:
            InvalidInput: for a prompt or setting that cannot be used.
            Exception: what ended the request, when one text was given.
        """
        if isinstance(prompts, str):
            return self._single(self.encode(prompts), params, settings)
        return self._batch(self._several("prompts", prompts), params, settings)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **settings: Any,
    ) -> Completion:
        """Answer a conversation: a list of ``{"role": ..., "content": ...}``.

        Arguments and errors as in :meth:`generate`. Text in the messages that spells a control
        token stays text.
        """
        return self._single(self.chat_tokens(messages), params, settings)

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **settings: Any,
    ) -> Iterator[Chunk]:
        """Yield the output as it is committed, several tokens at a time where the method can.

        Args:
            prompt: a text, token ids, or the messages of a conversation.
            params, settings: as in :meth:`generate`; ``n`` must be 1.

        Closing the iterator cancels the request.
        """
        conversation = isinstance(prompt, (list, tuple)) and prompt[:1]
        if conversation and isinstance(conversation[0], Mapping):
            ids = self.chat_tokens(prompt)  # type: ignore[arg-type]
        else:
            ids = self.encode(prompt)  # type: ignore[arg-type]
        requests = self.requests(ids, params, settings)
        if len(requests) != 1:
            raise InvalidInput("n", len(requests), "a stream has one output; use generate")
        return self._stream(requests[0])

    def score(
        self, prompts: Sequence[str | Sequence[int]], top: int = 0
    ) -> list[list[TokenLogprob]]:
        """Log-probabilities of the tokens of prompts, each given those before it, as one batch.

        Args:
            prompts: texts or token ids.
            top: how many of the best tokens at each place to name as well.

        Returns:
            For each prompt an entry for every token but the first.

        Raises:
            InvalidInput: for a prompt that cannot be used, or a model that is not autoregressive.
        """
        most = whole(0, self.config.vocab_size)("top", top)
        asked = [self.reading(ids, most) for ids in self._several("prompts", prompts)]
        self._read(asked)
        return [cast(PromptReader, request.decoder).logprobs for request in asked]

    def rank(
        self, context: str | Sequence[int], candidates: Sequence[str | Sequence[int]]
    ) -> list[Ranked]:
        """Continuations of one context, the likeliest first; all are scored in the same forwards.

        Args:
            context: a text or token ids.
            candidates: texts or token ids, each of at most 512 tokens.

        Raises:
            InvalidInput: for what cannot be used, or a model that is not autoregressive.
        """
        if isinstance(candidates, str):
            raise InvalidInput("candidates", candidates, "give a list of texts or token ids")
        request = self.ranking(self.encode(context), candidates)
        self._read([request])
        return ranked(cast(CandidateReader, request.decoder).logprobs)

    def ranking(
        self, ids: list[int], candidates: Sequence[str | Sequence[int]], **settings: Any
    ) -> GenerationRequest:
        """A request that scores continuations of ``ids``; its ``decoder`` is a
        :class:`CandidateReader`. Settings are other fields of the request."""
        found = [
            token_ids(self._continuation(candidate), "candidates", self.config.vocab_size)
            for candidate in candidates
        ]
        reader = CandidateReader(found)
        if len(ids) + (longest := max(map(len, found))) > self.config.context_length:
            fix = f"context and candidate have at most {self.config.context_length} tokens together"
            raise InvalidInput("candidates", f"{longest} tokens", fix)
        return reading_request(self.config, ids, reader, **settings)

    def embed(self, prompts: Sequence[str | Sequence[int]]) -> NDArray[np.float32]:
        """float32 [prompts, hidden size]: the mean of each prompt's last hidden states, behind the
        final norm, scaled to length 1. Raises InvalidInput as :meth:`score`."""
        asked = [self.reading(ids, hidden=True) for ids in self._several("prompts", prompts)]
        if not asked:
            return np.empty((0, self.config.hidden_size), np.float32)
        self._read(asked)
        return unit_means([cast(PromptReader, request.decoder) for request in asked])

    def reading(
        self, ids: list[int], top: int | None = None, hidden: bool = False, **settings: Any
    ) -> GenerationRequest:
        """A request that reads a prompt; its ``decoder`` is a :class:`PromptReader`.

        Args:
            top: see :meth:`score`; None scores nothing.
            hidden: whether to collect hidden states.
            settings: other fields of the request.
        """
        reader = PromptReader(top, self._norm if hidden else None, self.config.norm_eps)
        return reading_request(self.config, ids, reader, **settings)

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation in the model's own format.

        Args:
            tools: descriptions of functions that the model may call, for templates that show them.
            variables: others that the template reads, for example ``enable_thinking``.
        """
        if self.chat_template is None:
            raise InvalidInput("model", self.model, "it has no chat template; use generate")
        return self.chat_template.encode(self.tokenizer, messages, tools=tools, **variables)

    def close(self) -> None:
        """Free the model; further calls fail."""
        with self._turn:
            self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a raw text, at least one."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            return ids or [self._start_token()]
        given: object = prompt
        if isinstance(given, (bytes, bytearray)) or not isinstance(given, (Sequence, np.ndarray)):
            raise InvalidInput("prompt", given, "give a text or a list of token ids")
        return list(prompt)

    def _several(self, field: str, prompts: Any) -> list[list[int]]:
        """Token ids of each of a list of prompts."""
        if isinstance(prompts, (str, bytes, bytearray)) or not isinstance(prompts, Iterable):
            raise InvalidInput(field, prompts, "give a list of texts or of lists of token ids")
        return [self.encode(prompt) for prompt in prompts]

    @property
    def families(self) -> tuple[str, ...]:
        """The families of methods that this model can be decoded with."""
        able = {
            "autoregressive": self.config.writes,
            "diffusion": self.config.mask_token is not None or self.config.canvas_length > 0,
        }
        return tuple(family for family, can in able.items() if can)

    def _spec(self, decoder: Decoder) -> Spec:
        return spec_for(decoder, self.model, self.families, self.config.decoder)

    def _start_token(self) -> int:
        """What stands for an empty prompt."""
        for token in (self.config.bos_token, *self.config.eos_tokens):
            if token is not None:
                return token
        raise InvalidInput("prompt", "", "give at least one token: the model has no BOS")

    def requests(
        self, ids: list[int], params: SamplingParams | None, settings: Mapping[str, Any]
    ) -> list[GenerationRequest]:
        """What a call of :meth:`generate` gives to the engine: one request for each of its ``n``.

        For callers that step :attr:`engine` themselves. Does not touch the engine, so another
        thread may prepare requests while it runs.

        Raises:
            InvalidInput: as :meth:`generate`; what only the engine can check is left to it.
        """
        own = {field.name for field in fields(SamplingParams)} | ALIASES.keys()
        sampling = {name: value for name, value in settings.items() if name in own}
        rest = {name: value for name, value in settings.items() if name not in own}
        if params is not None and sampling:
            raise InvalidInput("params", sorted(sampling), "give params or keywords, not both")
        if params is None:
            params = SamplingParams.from_mapping(sampling)
        elif not isinstance(params, SamplingParams):
            raise InvalidInput("params", params, "give SamplingParams, or its fields as keywords")
        decoder = self.decoder
        if "decoder" in rest:
            decoder = self._spec(rest.pop("decoder"))
        decoder = with_settings(decoder, rest)
        check_draft_model(decoder, self.draft_model)
        known(own | REQUEST_SETTINGS, sorted(rest), "setting")
        prompt = token_ids(ids)
        if rest.get("prediction") is not None:
            rest["prediction"] = self._prediction(rest["prediction"])
        if rest.get("constraint") is not None:
            rest["constraint"] = self._compiler.compile(rest["constraint"], decoder.method.family)
        return [
            GenerationRequest(prompt, decoder, params.for_choice(index), **rest)
            for index in range(params.n)
        ]

    def _continuation(self, text: str | Sequence[int]) -> Sequence[int]:
        """Token ids of what follows a prompt, in which nothing is a control token."""
        if isinstance(text, str):
            return self.tokenizer.encode(text, special=False, parse_special=False)
        return text

    def _prediction(self, given: Any) -> NDArray[np.int32]:
        if not isinstance(given, (str, list, tuple, np.ndarray)):
            raise InvalidInput("prediction", given, "give a text or a list of token ids")
        ids = self._continuation(given)  # type: ignore[arg-type]
        return token_ids(ids, "prediction") if len(ids) else np.empty(0, np.int32)

    def _single(
        self, ids: list[int], params: SamplingParams | None, settings: Mapping[str, Any]
    ) -> Completion:
        completion = self._batch([ids], params, settings)[0]
        if completion.error is not None:
            raise completion.error
        return completion

    def _batch(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams | None,
        settings: Mapping[str, Any],
    ) -> list[Completion]:
        settings = dict(settings)
        search, scorer = settings.pop("search", None), settings.pop("scorer", None)
        if search is None and scorer is not None:
            raise InvalidInput("scorer", scorer, "name a search that uses it, as best-of(n=4)")
        groups = [self.requests(ids, params, settings) for ids in prompts]
        if search is not None:
            if isinstance(scorer, Mapping):
                compiled = self._compiler.compile(scorer, self.families[0])
                scorer = Follows(compiled, self.config.eos_tokens)
            with self._turn:
                return search_together(self.engine, groups, search, self.tokenizer.decode, scorer)
        with self._turn:
            done = iter(run(self.engine, [request for group in groups for request in group]))
        return [with_alternatives([next(done) for _ in group]) for group in groups]

    def _read(self, requests: Sequence[GenerationRequest]) -> None:
        """Run requests that read; raises what ended one."""
        with self._turn:
            for sequence in run(self.engine, requests):
                if sequence.error is not None:
                    raise sequence.error

    def _stream(self, request: GenerationRequest) -> Iterator[Chunk]:
        decided = 0
        with self._turn:
            sequence = self.engine.add(request)
        try:
            while True:
                with self._turn:  # Others may have made steps of this one meanwhile.
                    if not sequence.finished and len(sequence.trace) == decided:
                        self.engine.step()
                    ended, news = sequence.finished, len(sequence.trace) > decided
                    decided = len(sequence.trace)
                    chunk = chunk_of(sequence)
                if ended:
                    break
                if news:
                    yield chunk
            if sequence.error is not None:
                raise sequence.error
            yield chunk
        finally:  # Of a forgotten stream, at any moment: a step may be going on, in any thread.
            self.engine.drop(sequence)
            if self._turn.acquire(blocking=False):
                try:
                    self.engine.settle()
                finally:
                    self._turn.release()
