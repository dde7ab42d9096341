"""``POST /v1/responses``: answers in the form of OpenAI's newer route, and stored responses."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import gets, posts
from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import metrics, now, usage
from paradecode.serve.protocol.answers import DeletedResponse, ResponseObject
from paradecode.serve.protocol.responses import ResponsesRequest, answered
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.reply import RouteReply
from paradecode.serve.sse import event
from paradecode.serve.stored import StoredResponses
from paradecode.serve.tool_calls import Delta
from paradecode.serve.wire import Done

router = APIRouter()


@router.post("/v1/responses", **posts(ResponsesRequest, ResponseObject, streams=True))
async def respond(
    request: Request, body: Annotated[ResponsesRequest, Depends(reading(ResponsesRequest))]
) -> Response:
    """Answer a text or a conversation, in the form of OpenAI's newer route."""
    job, stored = Generation(request, body), request.app.state.stored
    if stored.most == 0 and body.previous_response_id is not None:
        fix = "nothing is stored: send the whole conversation, or start with --stored-responses"
        raise wrong("previous_response_id", fix)
    if stored.most == 0 and body.store:
        job.note.ignored.append("store")
    reply = await apart(request, lambda: _ResponseReply(job, body, stored))
    return await reply.response(request)


@router.get("/v1/responses/{name}", **gets(ResponseObject, 404))
async def stored_response(request: Request, name: str) -> Response:
    """Return a response that this server has stored for this key."""
    return JSONResponse(request.app.state.stored.get(request.state.account, name).answer)


@router.delete("/v1/responses/{name}", **gets(DeletedResponse, 404))
async def forget(request: Request, name: str) -> Response:
    """Delete a stored response."""
    request.app.state.stored.remove(request.state.account, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


class _ResponseReply(RouteReply):
    def __init__(self, job: Generation, body: ResponsesRequest, stored: StoredResponses) -> None:
        super().__init__(job)
        self.stored, self.before = stored, list[dict[str, Any]]()
        if (last := body.previous_response_id) is not None:
            self.before = stored.get(job.account, last, "previous_response_id").messages
        chat = body.chat(self.before)
        prompt = chat.prompt(job.model.ready.tools)
        wanted = {"constraint": chat.constraint(), "thoughts": chat.thoughts}
        job.ask([prompt], chat.sampling(), **wanted)
        self.body, self.item = body, f"msg_{job.note.id}"
        self.calls, self.chat = chat.calls(lambda: job.thinks), chat
        self.keeps = stored.most > 0 and body.store is not False
        said = body.model_dump(include={"text", "tools", "tool_choice"}, by_alias=True)
        chosen = (said["text"] or {}).get("format")
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
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": self.keeps,
            "background": False,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "max_tool_calls": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "top_logprobs": 0,
            "user": None,
            "text": {"format": chosen or {"type": "text"}},
            "tool_choice": said["tool_choice"] or "auto",
            "tools": said["tools"] or [],
            "truncation": "disabled",
        }

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        (output,) = outputs
        items = _Items(self.item)
        for delta in (*self.calls.feed(output.text), *self.calls.finish()):
            items.of(delta)
        return self.ended(items, output.done)

    def begun(self) -> dict[str, Any]:
        head = {**self.common, "status": "in_progress", "output": []}
        end = dict.fromkeys(("usage", "error", "incomplete_details", "completed_at"))
        return {**head, **end}

    def ended(self, items: _Items, done: Done) -> dict[str, Any]:
        whole = done.finish_reason == "stop"
        status = "completed" if whole else "incomplete"
        why = "max_output_tokens" if done.finish_reason == "length" else "deadline"
        found = usage([done], 1)
        items.end(status)
        answer = {
            **self.begun(),
            "status": status,
            "completed_at": now() if whole else None,
            "incomplete_details": None if whole else {"reason": why},
            "output": items.made,
            "usage": {
                "input_tokens": found["prompt_tokens"],
                "input_tokens_details": found["prompt_tokens_details"],
                "output_tokens": found["completion_tokens"],
                "output_tokens_details": {
                    "reasoning_tokens": found["completion_tokens_details"]["reasoning_tokens"]
                },
                "total_tokens": found["total_tokens"],
            },
        }
        answer |= {"metrics": metrics([done])} if self.body.include_metrics else {}
        if self.keeps:
            said = [m.model_dump(exclude_none=True) for m in self.chat.messages]
            said = said[1:] if self.body.instructions else said  # Instructions are not stored.
            self.stored.put(self.job.account, answer, [*said, *answered(items.made)])
        return answer

    async def stream(self) -> AsyncGenerator[bytes, None]:
        number = -1

        def named(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **data}, kind)

        items, done = _Items(self.item), None
        async with aclosing(await self.job.started()) as events:
            yield named("response.created", response=self.begun())
            yield named("response.in_progress", response=self.begun())
            try:
                async for _, news in events:
                    if isinstance(news, Done):
                        deltas, done = self.calls.finish(), news
                    else:
                        deltas = self.calls.feed(news.text)
                    for delta in deltas:
                        for kind, data in items.of(delta):
                            yield named(kind, **data)
            except ApiError as error:
                told = {"code": error.code or error.type, "message": error.message}
                failed = {**self.begun(), "status": "failed", "error": told}
                yield named("response.failed", response=failed)
                return
        assert done is not None
        for kind, data in items.end("completed" if done.finish_reason == "stop" else "incomplete"):
            yield named(kind, **data)
        answer = self.ended(items, done)
        yield named(f"response.{answer['status']}", response=answer)


Named = tuple[str, dict[str, Any]]
CALLED = {
    "function": ("function_call", "fc", "arguments", "function_call_arguments"),
    "custom": ("custom_tool_call", "ctc", "input", "custom_tool_call_input"),
}
"""Kind of a tool -> type, id's beginning and field of a call's item, and name of its events."""


class _Items:
    """The items of an answer (reasoning, a message or calls), and the events about them.

    Attributes:
        made: the items so far. The last item may still grow.
    """

    def __init__(self, name: str) -> None:
        self.name, self.made, self.open = name, list[dict[str, Any]](), False

    def of(self, delta: Delta) -> list[Named]:
        """Return the events for a delta."""
        told: list[Named] = []
        if text := delta.get("reasoning_content"):
            if not self.open or self.made[-1]["type"] != "reasoning":
                part = {"type": "reasoning_text", "text": ""}
                name = f"rs_{self.name}_{len(self.made)}"
                told += self._begin({"id": name, "type": "reasoning", "summary": []})
                self.made[-1]["content"] = [part]
            self.made[-1]["content"][0]["text"] += text
            said = {**self._place(), "content_index": 0, "delta": text}
            told.append(("response.reasoning_text.delta", said))
        if text := delta.get("content"):
            if not self.open or self.made[-1]["type"] != "message":
                told += self._message()
            self.made[-1]["content"][0]["text"] += text
            said = {**self._place(), "content_index": 0, "delta": text, "logprobs": []}
            told.append(("response.output_text.delta", said))
        for part in delta.get("tool_calls", ()):
            kind = "custom" if "custom" in part else "function"
            made, name, field, events = CALLED[kind]
            if "id" in part:
                item = {"type": made, "call_id": part["id"], "name": part[kind]["name"], field: ""}
                told += self._begin({"id": f"{name}_{part['id']}", **item})
            if written := part[kind][field]:
                self.made[-1][field] += written
                told.append((f"response.{events}.delta", {**self._place(), "delta": written}))
        return told

    def end(self, status: str) -> list[Named]:
        """End the last item. An answer without items gets an empty message."""
        spoken = [item for item in self.made if item["type"] != "reasoning"]
        told = [] if spoken else self._message()
        return [*told, *self._close(status)]

    def _message(self) -> list[Named]:
        head = {"id": f"{self.name}_{len(self.made)}", "type": "message", "role": "assistant"}
        told = self._begin({**head, "content": []})
        self.made[-1]["content"].append(_part(""))
        said = {**self._place(), "content_index": 0, "part": _part("")}
        return [*told, ("response.content_part.added", said)]

    def _begin(self, item: dict[str, Any]) -> list[Named]:
        told = self._close("completed")
        self.made.append({**item, "status": "in_progress"})
        self.open = True
        said = {"output_index": len(self.made) - 1, "item": copy.deepcopy(self.made[-1])}
        return [*told, ("response.output_item.added", said)]

    def _close(self, status: str) -> list[Named]:
        if not self.open:
            return []
        self.open = False
        item, place = self.made[-1], self._place()
        item["status"] = status
        told: list[Named] = []
        if item["type"] == "message":
            part = item["content"][0]
            whole = {**place, "content_index": 0}
            said = {**whole, "text": part["text"], "logprobs": []}
            told.append(("response.output_text.done", said))
            told.append(("response.content_part.done", {**whole, "part": part}))
        elif item["type"] == "reasoning":
            said = {**place, "content_index": 0, "text": item["content"][0]["text"]}
            told.append(("response.reasoning_text.done", said))
        else:
            _, _, field, events = CALLED["function" if "arguments" in item else "custom"]
            said = {**place, "name": item["name"], field: item[field]}
            told.append((f"response.{events}.done", said))
        said = {"output_index": len(self.made) - 1, "item": item}
        return [*told, ("response.output_item.done", said)]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.made[-1]["id"], "output_index": len(self.made) - 1}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
