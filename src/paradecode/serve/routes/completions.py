"""``POST /v1/completions``: continuations of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import progress, reason
from paradecode.serve.protocol.answers import StreamedChoices, TextCompletion
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.prompts import read
from paradecode.serve.routes.reply import ChoicesReply, Part
from paradecode.serve.scores import ScoreColumns, prompt_logprobs, text_length, text_logprobs
from paradecode.serve.whole import whole
from paradecode.serve.wire import Done, OutputChunk, PromptInput

router = APIRouter()

ECHOED = 256
"""The most tokens of an echoed prompt in one streamed event."""


@router.post("/v1/completions", **posts(CompletionRequest, TextCompletion, streams=StreamedChoices))
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(reading(CompletionRequest))]
) -> Response:
    """Continue texts or lists of token ids."""
    job = Generation(request, body, body.n or 1)
    prompts = body.prompts(job.model.ready.fim)
    reply = await apart(request, lambda: _CompletionReply(job, body, prompts))
    if body.scored is not None:
        _, reply.read = await read(request, body, prompts, "logprobs", body.scored, job.n)
    if body.echo:
        reply.echoes = [await _text(job, prompt) for prompt in prompts]
    if body.max_tokens == 0:
        outputs = [WholeOutput(done=of.done) for of in reply.read for _ in range(job.n)]
        return whole(reply.whole(outputs))
    return await reply.response(request)


class _CompletionReply(ChoicesReply):
    """The reply of the route, whose outputs may begin with their prompts.

    Attributes:
        echoes: texts of the prompts, if each output begins with its prompt.
        read: log-probabilities of each prompt, if the request wants them.
    """

    prefix, kind, part_kind = "cmpl", "text_completion", "text_completion"
    body: CompletionRequest
    echoes: Sequence[str] = ()
    read: Sequence[WholeOutput] = ()

    def __init__(self, job: Generation, body: CompletionRequest, prompts: Sequence[Any]) -> None:
        super().__init__(job, body, prompts)
        self.offsets: Counter[int] = Counter()

    def choice(self, index: int, output: WholeOutput) -> dict[str, Any]:
        prompt, found = index // self.job.n, None
        text = self.echoes[prompt] if self.echoes else ""
        if self.body.logprobs is not None:
            read = [self.read[prompt].scores] if self.echoes else []
            found = text_logprobs([*read, output.scores], prompt=bool(read))
        made = {"index": index, "text": text + output.text, "logprobs": found}
        if self.body.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(self.read[prompt].scores)
        return {**made, **reason(output.done)}

    def first_choices(self) -> Iterator[dict[str, Any]]:
        if not self.echoes:
            yield _choice(0)
        for index in range(len(self.echoes) * self.job.n):
            prompt = index // self.job.n
            text = self.echoes[prompt]
            if self.body.logprobs is None:
                yield _choice(index, text)
                continue
            for number, some in enumerate(self.read[prompt].scores.parts(ECHOED)):
                found = text_logprobs([some], self.offsets[index], prompt=number == 0)
                yield _choice(index, "" if number else text, logprobs=found)
                self.offsets[index] += text_length(some)

    def quiet_choice(self, index: int) -> dict[str, Any]:
        return _choice(index)

    def parts(self, index: int, news: OutputChunk | Done) -> Iterator[Part]:
        if isinstance(news, Done):
            yield _choice(index, **reason(news)), {}
            return
        found, scores = None, ScoreColumns(news.logprobs)
        if len(scores):
            found = text_logprobs([scores], self.offsets[index])
            self.offsets[index] += text_length(scores)
        shown = {"paradecode": progress(news)} if self.shows(news) else {}
        if news.text or found or shown:
            yield _choice(index, news.text, logprobs=found), shown


async def _text(job: Generation, prompt: PromptInput) -> str:
    if prompt.text is not None:
        return prompt.text
    said = await job.pool.detokenize(job.model.name, prompt.tokens or [])
    return said.text


def _choice(index: int, text: str = "", **details: Any) -> dict[str, Any]:
    empty = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    return empty | details
