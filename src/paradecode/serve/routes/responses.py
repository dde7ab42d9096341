"""``POST /v1/responses``: text in, text out; nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.errors import ApiError
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import metrics, now, usage
from paradecode.serve.protocol.answers import ResponseObject
from paradecode.serve.protocol.responses import ResponsesRequest
from paradecode.serve.reading import reading
from paradecode.serve.routes.reply import RouteReply
from paradecode.serve.sse import event
from paradecode.serve.wire import Done

router = APIRouter()


@router.post("/v1/responses", **posts(ResponsesRequest, ResponseObject, streams=True))
async def respond(
    request: Request, body: Annotated[ResponsesRequest, Depends(reading(ResponsesRequest))]
) -> Response:
    """Answer a text or a conversation, in the form of OpenAI's newer route."""
    return await _ResponseReply(Generation(request, body), body).response(request)


class _ResponseReply(RouteReply):
    def __init__(self, job: Generation, body: ResponsesRequest) -> None:
        super().__init__(job)
        job.ask([body.prompt()], body.sampling())
        self.body, self.item = body, f"msg_{job.note.id}"
        self.common = {
            "id": f"resp_{job.note.id}",
            "object": "response",
            "created_at": now(),
            "model": job.model.name,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [],
            "truncation": "disabled",
        }

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        (output,) = outputs
        return self.ended(output.text, output.done)

    def begun(self) -> dict[str, Any]:
        head = {**self.common, "status": "in_progress", "output": []}
        return {**head, "usage": None, "error": None, "incomplete_details": None}

    def ended(self, text: str, done: Done) -> dict[str, Any]:
        whole = done.finish_reason == "stop"
        status = "completed" if whole else "incomplete"
        why = "max_output_tokens" if done.finish_reason == "length" else "deadline"
        found = usage([done], 1)
        answer = {
            **self.begun(),
            "status": status,
            "incomplete_details": None if whole else {"reason": why},
            "output": [self._message(status, [_part(text)])],
            "usage": {
                "input_tokens": found["prompt_tokens"],
                "input_tokens_details": found["prompt_tokens_details"],
                "output_tokens": found["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": found["total_tokens"],
            },
        }
        return answer | ({"metrics": metrics([done])} if self.body.include_metrics else {})

    async def stream(self) -> AsyncGenerator[bytes, None]:
        number = -1

        def named(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **data}, kind)

        place = {"item_id": self.item, "output_index": 0, "content_index": 0}
        text, done = "", None
        async with aclosing(await self.job.started()) as events:
            yield named("response.created", response=self.begun())
            yield named("response.in_progress", response=self.begun())
            opened = self._message("in_progress", [])
            yield named("response.output_item.added", output_index=0, item=opened)
            yield named("response.content_part.added", **place, part=_part(""))
            try:
                async for _, news in events:
                    if isinstance(news, Done):
                        done = news
                    elif news.text:
                        text += news.text
                        delta = {"delta": news.text, "logprobs": []}
                        yield named("response.output_text.delta", **place, **delta)
            except ApiError as error:
                told = {"code": error.code or error.type, "message": error.message}
                failed = {**self.begun(), "status": "failed", "error": told}
                yield named("response.failed", response=failed)
                return
        assert done is not None
        answer = self.ended(text, done)
        yield named("response.output_text.done", **place, text=text, logprobs=[])
        yield named("response.content_part.done", **place, part=_part(text))
        yield named("response.output_item.done", output_index=0, item=answer["output"][0])
        yield named(f"response.{answer['status']}", response=answer)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.item, "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
