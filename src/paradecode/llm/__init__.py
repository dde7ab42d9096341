"""The public interface: load a model once, then chat, complete or stream with any method."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast, overload

import numpy as np
from numpy.typing import NDArray

from paradecode.backends import open_backend
from paradecode.backends.drafting import DraftPlace
from paradecode.completion import Chunk, Completion, Ranked, ranked, with_alternatives
from paradecode.core.checks import is_whole, known, whole
from paradecode.core.decoder import TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import TokenLogprob
from paradecode.engine.engine import Limits, run
from paradecode.engine.prompt import CandidateReader, PromptReader, unit_means
from paradecode.engine.request import GenerationRequest
from paradecode.llm.loading import drafting_with, open_engine
from paradecode.llm.progress import Tick, ticking
from paradecode.llm.requests import RequestMaker, Said, each_of, is_one
from paradecode.llm.settings import CHAT_SETTINGS, ChatSettings, Settings
from paradecode.llm.streaming import in_threads, stream
from paradecode.methods.choice import AUTO, Decoder, Profile, choose
from paradecode.models.adapter import merge_file
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import with_template
from paradecode.search.completion import search_together
from paradecode.search.scorers.scorer import Follows

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LLM(RequestMaker):
    """A loaded model that answers chats and continues texts.

    Args:
        model: a catalogue name, a ``.gguf`` file, a folder of safetensors, or a hub name; None is
            the default model.
        decoder: the method, as a spec string (``"prompt-lookup(max_ngram=4)"``), a mapping with
            ``method``, or None for plain decoding (``greedy``; ``static`` for a diffusion model).
            Each call may choose another. ``auto`` is ``prompt-lookup``, which is exact; for the
            default model it uses the n-gram table that comes with the model. For a diffusion model
            ``auto`` is ``threshold``, which is not exact.
        speculative_config: the method under vLLM's name for this setting; give only one of the two.
        profile: a file that ``paradecode tune`` wrote; it replaces ``decoder`` and
            ``speculative_config``.
        draft_model: the small model of methods that need one (``draft-model``, ``pearl``), named
            like ``model``; a spec may name it too: ``{"method": "draft-model", "model": ...}``. Its
            tokenizer may differ.
        draft_vocabulary: an n-gram table (a file of ``paradecode train ngram-table``, or the name
            of one of the package's tables). The draft model proposes only the table's tokens, and
            its LM head keeps only their rows. None: it proposes all tokens.
        backend, dtype, device, threads: see :func:`paradecode.backends.open_backend`.
        draft_threads: CPU threads for the draft model or draft head alone (native, or on a
            ``draft_device``). A draft model then drafts while the target verifies (``pearl``,
            ``mirror-sd``), and the target has the other cores, unless ``threads`` is given. A draft
            head takes turns with the target. None: they share the target's threads; on a CPU as
            ``draft_device`` they have as many threads as the target.
        draft_device: ``cpu``, ``cuda`` or ``cuda:N``, where PyTorch runs draft models and draft
            heads; it does not change where the target runs. None: where the target runs.
        ranks: number of processes that divide the model, one for each GPU (tensor parallelism,
            torch only); the draft model stays whole in the first process.
        adapter: a file of ``paradecode train adapt``, merged into the model in float32, which makes
            it a block diffusion model.
        chat_template: Jinja text, a file of it, or the name of one of the model's templates
            (``rag``), in place of the model's default template.
        limits: sizes of the engine (batch, K/V memory, prefix cache).
        progress: True shows a bar while the model is loaded (native only); a function is called
            with the loaded bytes and all bytes.

    Raises:
        InvalidInput: a setting is unknown or unusable.
        InvalidModel: a model cannot be loaded.

    Calls are safe from several threads, because only one call runs at a time. Use the object as a
    context manager, or call :meth:`close`, to free the memory early.
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
        chat_template: str | PathLike[str] | None = None,
        limits: Limits | None = None,
        progress: Tick | bool = False,
        **unknown: NoReturn,
    ) -> None:
        # Refuse what is bad before a model is loaded.
        known(LLM.__init__.__annotations__.keys() - {"return", "unknown"}, unknown, "setting")
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidInput("limits", limits, "give Limits(batch=..., kv_tokens=...)")
        tuned = choose(decoder, speculative_config, profile)
        chosen = tuned.spec if isinstance(tuned, Profile) else tuned
        place = DraftPlace(draft_device, draft_threads)
        drafting = drafting_with(chosen, draft_model, draft_vocabulary, place)
        checkpoint = open_model(model if model is None else fspath(model))
        if adapter is not None:
            checkpoint = merge_file(checkpoint, Path(adapter))
        if chat_template is not None:
            checkpoint = with_template(checkpoint, fspath(chat_template))
        super().__init__(checkpoint, chosen, drafting.model)
        if isinstance(tuned, Profile) and tuned.model != self.model:
            said = f"the profile was tuned for {tuned.model}, not {self.model}"
            warnings.warn(said, stacklevel=2)
        with ticking(progress, f"loading {self.model}", bytes=True) as tick:
            opens = partial(open_backend, backend, dtype=dtype, device=device, progress=tick)
            limits = limits or Limits()
            self.engine = open_engine(checkpoint, drafting, opens, threads, ranks, limits)
        self.backend = self.engine.models[TARGET]
        for named in (spec.settings for spec in (self.decoder, *self.decoder.parts)):
            if named.get("head"):  # So that no request waits until it is read and packed.
                self.engine.head(
                    named["head"], named.get("vocabulary", 0), named.get("dtype", "q8")
                )
        self._turn = threading.RLock()

    @overload
    def chat(  # type: ignore[overload-overlap]  # An empty list is both.
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = ...,
        **settings: Unpack[ChatSettings],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[str | Sequence[Mapping[str, Any]]],
        params: SamplingParams | None = ...,
        **settings: Unpack[ChatSettings],
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Said | Sequence[Said],
        params: SamplingParams | None = None,
        **settings: Unpack[ChatSettings],
    ) -> Completion | list[Completion]:
        """Answer a text or a conversation, or answer each of a list of them as one batch.

        Args:
            messages: a user message; or a list of ``{"role": ..., "content": ...}``; or a list of
                such messages or lists. Text that spells a control token stays text.
            params: as in :meth:`complete`.
            settings: as in :meth:`complete`, and ``system`` (a text before the conversation),
                ``tools`` (descriptions of functions, for templates that show them) and
                ``chat_template`` (Jinja text, in place of the model's own).

        Results and errors are those of :meth:`complete`.
        """
        rest, shown = _apart(settings)
        asked = [self.conversation(each, **shown) for each in each_of(messages)]
        if is_one(messages):
            return self._single(asked[0], params, rest)
        return self._batch(asked, params, rest)

    @overload
    def complete(  # type: ignore[overload-overlap]  # An empty list is both.
        self,
        prompts: str | Sequence[int],
        params: SamplingParams | None = ...,
        **settings: Unpack[Settings],
    ) -> Completion: ...

    @overload
    def complete(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = ...,
        **settings: Unpack[Settings],
    ) -> list[Completion]: ...

    def complete(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        **settings: Unpack[Settings],
    ) -> Completion | list[Completion]:
        """Continue raw text or token ids, without a chat template (see :meth:`chat` for answers).

        Args:
            prompts: a text, a list of token ids, or a list of these, run as one batch.
            params: sampling parameters; or give its fields as keywords, e.g. ``max_tokens=64``.
            settings: fields of :class:`SamplingParams`, and the further settings below.

        The request has ``decoder``, ``priority``, ``deadline`` (seconds) and ``salt``. Its
        ``prediction`` is a text or token ids that the output will probably be, for methods that use
        it. Its ``constraint`` says what the output must be: ``{"type": "json_schema", "value":
        {...}}`` and others (see :meth:`paradecode.constraints.compile.Compiler.compile`). Settings
        of the method can be given too, such as ``steps=64, block_length=32``. ``gen_length`` is
        ``max_tokens``.

        ``search``, such as ``best-of(n=8)``, makes several outputs and returns the one that it
        prefers. ``scorer`` says what it prefers: a spec such as ``reward-model(path=...)``, a
        function (:data:`paradecode.search.Scorer`), or a constraint that the output should follow.
        ``progress=True`` shows a bar of ended requests; a function is called with the numbers of
        ended and of all requests. A search has no progress.

        Returns:
            A completion for one prompt, a list for a list. In a list, a failed request has
            ``finish_reason`` ``error`` and does not affect the other requests.

        Raises:
            InvalidInput: a prompt or setting cannot be used.
            Exception: the error that ended the request, if one prompt was given.
        """
        if isinstance(prompts, str) or _are_ids(prompts):
            return self._single(self.encode(cast("Sequence[int]", prompts)), params, settings)
        return self._batch(self._several("prompts", prompts), params, settings)

    def generate(self, prompts: Any, params: SamplingParams | None = None, **settings: Any) -> Any:
        """Call :meth:`complete` and warn; from version 0.4 on this method chats."""
        said = (
            "LLM.generate continues raw text: use complete for that, or chat for answers. "
            "From 0.4 on generate chats, as the command does."
        )
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        return self.complete(prompts, params, **settings)

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[ChatSettings],
    ) -> Generator[Chunk, None, None]:
        """Yield an answer while it is decoded, several tokens at a time if the method allows it.

        Args:
            prompt: a text or a conversation, as in :meth:`chat`; or token ids, which are continued:
                ``llm.stream(llm.encode(text))`` continues a raw text.
            params, settings: as in :meth:`chat`; ``n`` must be 1.

        Closing the iterator cancels the request.
        """
        ids, rest = self._asked(prompt, settings)
        requests = self.requests(ids, params, rest)
        if len(requests) != 1:
            raise InvalidInput("n", len(requests), "a stream has one output; use complete")
        return stream(self.engine, self._turn, requests[0])

    async def achat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[ChatSettings],
    ) -> Completion:
        """Answer one text or conversation for asyncio; concurrent calls share their forwards.

        Arguments and errors are those of :meth:`chat`, but ``n`` must be 1. Cancelling the task
        cancels the request.
        """
        chunks = [chunk async for chunk in self.astream(messages, params, **settings)]
        completion = chunks[-1].completion
        assert completion is not None  # The last chunk of a stream has it.
        return completion

    async def astream(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **settings: Unpack[ChatSettings],
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of :meth:`stream`, for asyncio: forwards run in a thread.

        Closing the iterator, or cancelling the task that waits for it, cancels the request. A
        forward that is running ends first.
        """
        chunks = await asyncio.to_thread(partial(self.stream, prompt, params, **settings))
        async with aclosing(in_threads(chunks)) as pieces:
            async for chunk in pieces:
                yield chunk

    def score(
        self, prompts: Sequence[str | Sequence[int]], top: int = 0
    ) -> list[list[TokenLogprob]]:
        """Return the log-probability of each prompt token after the tokens before it, as one batch.

        Args:
            prompts: texts or token ids.
            top: number of best tokens at each position to report as well.

        Returns:
            For each prompt, an entry for every token but the first.

        Raises:
            InvalidInput: a prompt cannot be used, or the model is not autoregressive.
        """
        most = whole(0, self.config.vocab_size)("top", top)
        asked = [self.reading(ids, most) for ids in self._several("prompts", prompts)]
        self._read(asked)
        return [cast(PromptReader, request.decoder).logprobs for request in asked]

    def rank(
        self, context: str | Sequence[int], candidates: Sequence[str | Sequence[int]]
    ) -> list[Ranked]:
        """Rank continuations of one context, the likeliest first; all share their forwards.

        Args:
            context: a text or token ids.
            candidates: texts or token ids, each of at most 512 tokens.

        Raises:
            InvalidInput: an argument cannot be used, or the model is not autoregressive.
        """
        if isinstance(candidates, str):
            raise InvalidInput("candidates", candidates, "give a list of texts or token ids")
        request = self.ranking(self.encode(context), candidates)
        self._read([request])
        return ranked(cast(CandidateReader, request.decoder).logprobs)

    def embed(self, prompts: Sequence[str | Sequence[int]]) -> NDArray[np.float32]:
        """Return the embeddings of prompts, float32 [prompts, hidden size].

        An embedding is the mean of the prompt's last hidden states after the final norm, scaled to
        length 1. Raises InvalidInput like :meth:`score`.
        """
        asked = [self.reading(ids, hidden=True) for ids in self._several("prompts", prompts)]
        if not asked:
            return np.empty((0, self.config.hidden_size), np.float32)
        self._read(asked)
        return unit_means([cast(PromptReader, request.decoder) for request in asked])

    def close(self) -> None:
        """Free the model; further calls fail."""
        with self._turn:
            self.engine.close()

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, decoder={str(self.decoder)!r}, backend={self.backend.name!r})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, prompt: Any, settings: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Return the token ids of a call's prompt, and the settings that do not change its text."""
        rest, shown = _apart(settings)
        if shown or not _are_ids(prompt):
            return self.conversation(prompt, **shown), rest
        return self.encode(prompt), rest

    def _several(self, field: str, prompts: Any) -> list[list[int]]:
        """Return the token ids of each prompt in a list."""
        if isinstance(prompts, (str, bytes, bytearray)) or not isinstance(prompts, Iterable):
            raise InvalidInput(field, prompts, "give a list of texts or of lists of token ids")
        return [self.encode(prompt) for prompt in prompts]

    def _single(
        self, ids: list[int], params: SamplingParams | None, settings: Mapping[str, Any]
    ) -> Completion:
        completion = self._batch([ids], params, settings)[0]
        if completion.error is not None:
            raise completion.error
        return completion

    def _batch(
        self, prompts: list[list[int]], params: SamplingParams | None, settings: Mapping[str, Any]
    ) -> list[Completion]:
        settings = dict(settings)
        progress = settings.pop("progress", False)
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
        with self._turn, ticking(progress, "answers") as tick:
            requests = [request for group in groups for request in group]
            done = iter(run(self.engine, requests, tick))
        return [with_alternatives([next(done) for _ in group]) for group in groups]

    def _read(self, requests: Sequence[GenerationRequest]) -> None:
        """Run requests that only read; raises the error that ended a request."""
        with self._turn:
            for sequence in run(self.engine, requests):
                if sequence.error is not None:
                    raise sequence.error


def _apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of the request and those of the conversation's text."""
    rest = dict(settings)
    shown = {name: rest.pop(name) for name in CHAT_SETTINGS if name in rest}
    return rest, shown


def _are_ids(given: object) -> bool:
    """Return whether this is a list of one prompt's token ids."""
    if isinstance(given, np.ndarray):
        return given.ndim == 1 and given.dtype.kind in "iu"
    return isinstance(given, Sequence) and len(given) > 0 and is_whole(given[0])
