"""``POST /v1/completions``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import progress, reason, text_logprobs
from paradecode.serve.protocol.answers import TextCompletion
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.prompts import prompt_logprobs, read
from paradecode.serve.routes.reply import ChoicesReply, Part
from paradecode.serve.wire import Done, OutputChunk, PromptInput

router = APIRouter()


@router.post("/v1/completions", **posts(CompletionRequest, TextCompletion, streams=True))
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(reading(CompletionRequest))]
) -> Response:
    """Continue texts or lists of token ids."""
    job, prompts = Generation(request, body, body.n or 1), body.prompts()
    reply = await apart(request, lambda: _CompletionReply(job, body, prompts))
    if body.scored is not None:
        _, reply.read = await read(request, body, prompts, "logprobs", body.scored)
    if body.echo:
        reply.echoes = [await _text(job, prompt) for prompt in prompts]
    if body.max_tokens == 0:
        outputs = [WholeOutput(done=of.done) for of in reply.read for _ in range(job.n)]
        return JSONResponse(reply.whole(outputs))
    return await reply.response(request)


class _CompletionReply(ChoicesReply):
    """Attributes:
    echoes: the prompts' texts, if each output begins with its prompt's.
    read: of each prompt, its log-probabilities, if they were asked for.
    """

    prefix, kind, part_kind = "cmpl", "text_completion", "text_completion"
    body: CompletionRequest
    echoes: Sequence[str] = ()
    read: Sequence[WholeOutput] = ()

    def __init__(self, job: Generation, body: CompletionRequest, prompts: Sequence[Any]) -> None:
        super().__init__(job, body, prompts)
        self.offsets: Counter[int] = Counter()

    def choice(self, index: int, output: WholeOutput) -> dict[str, Any]:
        text, found = self._begun(index)
        if self.body.logprobs is not None:
            found = _joined(found, text_logprobs(output.logprobs, self.offsets[index]))
        made = {"index": index, "text": text + output.text, "logprobs": found}
        if self.body.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(self.read[index // self.job.n].logprobs)
        return {**made, **reason(output.done)}

    def first_choices(self) -> list[dict[str, Any]]:
        outputs = range(len(self.echoes) * self.job.n or 1)
        begun = [self._begun(index) for index in outputs]
        return [_choice(i, text, logprobs=found) for i, (text, found) in enumerate(begun)]

    def _begun(self, index: int) -> tuple[str, dict[str, Any] | None]:
        """How an output begins: with nothing, or with its prompt."""
        if not self.echoes:
            return "", None
        text, found = self.echoes[index // self.job.n], None
        if self.body.logprobs is not None:
            found = text_logprobs(self.read[index // self.job.n].logprobs, 0, prompt=True)
            self.offsets[index] += sum(len(token) for token in found["tokens"])
        return text, found

    def parts(self, index: int, news: OutputChunk | Done) -> Iterator[Part]:
        if isinstance(news, Done):
            yield _choice(index, **reason(news)), {}
            return
        found = None
        if news.logprobs:
            found = text_logprobs(news.logprobs, self.offsets[index])
            self.offsets[index] += sum(len(text) for text in found["tokens"])
        shown = {"paradecode": progress(news)} if self.shows(news) else {}
        if news.text or found or shown:
            yield _choice(index, news.text, logprobs=found), shown


async def _text(job: Generation, prompt: PromptInput) -> str:
    if prompt.text is not None:
        return prompt.text
    said = await job.pool.detokenize(job.model.name, prompt.tokens or [])
    return said.text


def _joined(first: dict[str, Any] | None, then: dict[str, Any]) -> dict[str, Any]:
    return then if first is None else {name: first[name] + then[name] for name in then}


def _choice(index: int, text: str = "", **details: Any) -> dict[str, Any]:
    empty = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    return empty | details
