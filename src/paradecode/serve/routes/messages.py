"""``POST /v1/messages``: conversations in the form of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import posts
from paradecode.serve.errors import ApiError
from paradecode.serve.generation import Generation, WholeOutput, model_of
from paradecode.serve.outputs import metrics, usage
from paradecode.serve.protocol.answers import CountedTokens, MessageAnswer
from paradecode.serve.protocol.messages import CountTokensRequest, MessagesRequest
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.reply import RouteReply
from paradecode.serve.sse import event, unless_gone
from paradecode.serve.tool_calls import Delta, message
from paradecode.serve.wire import Done

router = APIRouter()


@router.post("/v1/messages", **posts(MessagesRequest, MessageAnswer, streams=True))
async def messages(
    request: Request, body: Annotated[MessagesRequest, Depends(reading(MessagesRequest))]
) -> Response:
    """Answer a conversation, in the form of Anthropic's API."""
    job = Generation(request, body)
    return await (await apart(request, lambda: _MessageReply(job, body))).response(request)


@router.post("/v1/messages/count_tokens", **posts(CountTokensRequest, CountedTokens))
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, Depends(reading(CountTokensRequest))]
) -> Response:
    """Count the tokens of the prompt of a conversation."""
    model = model_of(request, body.model)
    prompt = await apart(request, lambda: body.chat().prompt(model.ready.tools))
    found = await unless_gone(request, request.app.state.pool.tokenize(model.name, prompt))
    return JSONResponse({"input_tokens": len(found.tokens)})


class _MessageReply(RouteReply):
    def __init__(self, job: Generation, body: MessagesRequest) -> None:
        super().__init__(job)
        chat = body.chat()
        prompt = chat.prompt(job.model.ready.tools)
        wanted = {"constraint": chat.constraint(), "thoughts": chat.thoughts}
        job.ask([prompt], chat.sampling(), **wanted)
        self.body = body
        self.calls = chat.calls(lambda: job.thinks)

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        (output,) = outputs
        said = message([*self.calls.feed(output.text), *self.calls.finish()])
        text, calls = said["content"], said.get("tool_calls", [])
        thoughts = said.get("reasoning_content", "")
        content = [{"type": "thinking", "thinking": thoughts, "signature": ""}] if thoughts else []
        content += [{"type": "text", "text": text}] if text or not calls else []
        content += [_use(call["id"], call["function"]) for call in calls]
        ended, spent = self._ended(output.done)
        answer = {**self._message(content), **ended, "usage": spent}
        return answer | ({"metrics": metrics([output.done])} if self.body.include_metrics else {})

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(await self.job.started()) as events:
            begun = {**self._message([]), "stop_reason": None, "stop_sequence": None}
            begun["usage"] = {"input_tokens": self.job.prompt_tokens, "output_tokens": 0}
            yield _event("message_start", message=begun)
            blocks = _Blocks()
            try:
                async for _, news in events:
                    if isinstance(news, Done):
                        deltas, done = self.calls.finish(), news
                    else:
                        deltas = self.calls.feed(news.text)
                    for delta in deltas:
                        for sent in blocks.of(delta):
                            yield sent
            except ApiError as error:
                yield _event("error", error={"type": error.type, "message": error.message})
                return
            for sent in blocks.end():
                yield sent
        ended, spent = self._ended(done)
        shown = {"metrics": metrics([done])} if self.body.include_metrics else {}
        yield _event("message_delta", delta=ended, usage=spent, **shown)
        yield _event("message_stop")

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": f"msg_{self.job.note.id}", "type": "message", "role": "assistant"}
        return {**head, "model": self.job.model.name, "content": content}

    def _ended(self, done: Done) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the reason why an output ended, and its usage."""
        found = usage([done], 1)
        cached = found["prompt_tokens_details"]["cached_tokens"]
        reason = "max_tokens"
        if done.finish_reason == "stop":
            reason = "end_turn" if done.stopped is None else "stop_sequence"
            reason = "tool_use" if self.calls.calls else reason
        spent = {
            "input_tokens": found["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": found["completion_tokens"],
        }
        return {"stop_reason": reason, "stop_sequence": done.stopped}, spent


class _Blocks:
    """The blocks of a streamed message. One block is open at a time."""

    def __init__(self) -> None:
        self.index, self.open = -1, ""

    def of(self, delta: Delta) -> list[bytes]:
        """Return the events for a delta."""
        sent: list[bytes] = []
        if text := delta.get("reasoning_content"):
            sent += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            sent.append(self._delta({"type": "thinking_delta", "thinking": text}))
        if text := delta.get("content"):
            sent += self._begin("text", {"type": "text", "text": ""})
            sent.append(self._delta({"type": "text_delta", "text": text}))
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                opened = {"type": "tool_use", "id": part["id"], "name": part["function"]["name"]}
                sent += self._begin(part["id"], {**opened, "input": {}})
            if arguments := part["function"]["arguments"]:
                sent.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return sent

    def end(self) -> list[bytes]:
        """Close the last block and return the events. An empty answer gets an empty block."""
        sent = [] if self.open else self._begin("text", {"type": "text", "text": ""})
        return [*sent, *self._close()]

    def _close(self) -> list[bytes]:
        if not self.open:
            return []
        signed = [self._delta({"type": "signature_delta", "signature": ""})]
        ended = _event("content_block_stop", index=self.index)
        return [*(signed if self.open == "thinking" else []), ended]

    def _begin(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        if self.open == kind:
            return []
        sent = self._close()
        self.index, self.open = self.index + 1, kind
        return [*sent, _event("content_block_start", index=self.index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.index, delta=delta)


def _use(id: str, function: dict[str, Any]) -> dict[str, Any]:
    """Return a call. Its arguments are an object, or a text if the model wrote no object."""
    try:
        given = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        given = None
    shown = given if isinstance(given, dict) else {"invalid": function["arguments"]}
    return {"type": "tool_use", "id": id, "name": function["name"], "input": shown}


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)
