"""Turns chat messages into a prompt in the format that the model was trained on."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.sandbox import SandboxedEnvironment
from paradecode.models.template_allowance import allowance
from paradecode.models.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TEMPLATE = 1 << 16
"""The most characters of a template; published ones have up to 20,000."""
MAX_MESSAGES = 1 << 12
MAX_CONTENT = 1 << 21

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Message = Mapping[str, Any]


class _Refused(Exception):
    """The template itself rejected the conversation."""


class ChatTemplate:
    """A model's chat template, compiled at first use in a sandbox with limits.

    Args:
        source: Jinja text.
        tokens: variables of the template: bos_token, eos_token, ...
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE:
            raise InvalidModel("chat_template", f"{len(source)} characters", "it is too long")
        self.source = source
        self._tokens = dict(tokens or {})

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The prompt as text.

        Args:
            messages: mappings with ``role`` (one of ROLES) and ``content`` (a string).
            add_generation_prompt: whether the prompt ends with the beginning of the assistant's
                turn.
            kwargs: more variables, for example ``tools`` or ``enable_thinking``.

        Raises:
            InvalidInput: the messages are wrong, or the template refuses them.
            InvalidModel: the template is broken or exceeds its limits.
        """
        _check(messages)
        messages = [{**message, "content": _content(message)} for message in messages]
        return self._render(messages, add_generation_prompt, kwargs)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids; text of a message never becomes a control token.

        The ids are those of ``render``, but if a message contains the text of a control token, it
        stays text. So a user cannot end the turn and write as the system.

        Raises:
            InvalidInput, InvalidModel: as ``render``; also if a message contains the text of a
                control token, and the template changes messages so that its place is unknown.
        """
        text = self.render(messages, add_generation_prompt, **kwargs)
        messages = [{**message, "content": _content(message)} for message in messages]
        others = [{k: v for k, v in m.items() if k != "content"} for m in messages]
        for string in _strings([others, kwargs]):
            if any(token in string for token in tokenizer.control):
                raise InvalidInput("messages", string, "remove the control token from this field")
        contents = [message["content"] for message in messages]
        if not any(token in content for content in contents for token in tokenizer.control):
            return tokenizer.encode(text, special=False)
        # Marks instead of the contents show the place of each in the text.
        nonce = secrets.token_hex(8)
        marks = [f"\ue000{nonce}.{index}\ue001" for index in range(len(messages))]
        marked_messages = [{**m, "content": mark} for m, mark in zip(messages, marks)]
        marked = self._render(marked_messages, add_generation_prompt, kwargs)
        for variant in (contents, [content.strip() for content in contents]):
            ids = _encode_marked(tokenizer, marked, dict(zip(marks, variant)), text)
            if ids is not None:
                return ids
        raise InvalidInput(
            "messages.content",
            next(t for t in tokenizer.control if any(t in c for c in contents)),
            "remove the control token; this model's template cannot keep it apart from its own",
        )

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, extra: Mapping[str, Any]
    ) -> str:
        try:
            with allowance():
                return self._compiled.render(
                    messages=messages,
                    add_generation_prompt=add_generation_prompt,
                    **{"tools": None, "documents": None, **self._tokens, **extra},
                )
        except _Refused as error:
            raise InvalidInput("messages", str(error), "change them as the template asks") from None
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError,
                RecursionError, AttributeError, MemoryError, SyntaxError) as error:  # fmt: skip
            # Jinja writes Python, which may refuse it: SyntaxError.
            raise InvalidModel(
                "chat_template", f"{type(error).__name__}: {error}", "use another template"
            ) from None

    @functools.cached_property
    def _compiled(self) -> Any:
        environment = SandboxedEnvironment()
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self.source)


def find_template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The file's template, or ChatML when the vocabulary has its tokens, or None."""
    if source is None and {"<|im_start|>", "<|im_end|>"} <= tokenizer.control.keys():
        source = CHATML
    if source is None:
        return None
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    tokens = {name: tokenizer.token(index) for name, index in ids.items() if index is not None}
    return ChatTemplate(source, tokens)


def _check(messages: Sequence[Message]) -> None:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInput("messages", messages, "give a list of {'role': ..., 'content': ...}")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidInput("messages", f"{len(messages)} messages", f"give 1 to {MAX_MESSAGES}")
    total = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidInput(where, message, "give {'role': ..., 'content': ...}")
        if message.get("role") not in ROLES:
            raise InvalidInput(
                f"{where}.role", message.get("role"), f"use one of {', '.join(ROLES)}"
            )
        content = _content(message)
        if not isinstance(content, str):
            raise InvalidInput(f"{where}.content", content, "give a string")
        total += len(content)
        if total > MAX_CONTENT:
            raise InvalidInput(f"{where}.content", f"{total} characters", "shorten the messages")


def _content(message: Message) -> Any:
    """The content of a message; it may be missing beside an assistant's tool calls."""
    content = message.get("content")
    calls = message.get("role") == "assistant" and message.get("tool_calls")
    return "" if content is None and calls else content


def _strings(value: object) -> Iterator[str]:
    """Every string inside of a JSON value."""
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, Mapping):
            pending += [*inner.keys(), *inner.values()]
        elif isinstance(inner, (list, tuple)):
            pending += inner


def _encode_marked(
    tokenizer: Tokenizer, marked: str, contents: Mapping[str, str], text: str
) -> list[int] | None:
    """Ids of ``text``, without control tokens in contents; None if the marks do not fit it."""
    ids: list[int] = []
    pending = ""
    rebuilt = ""
    pieces = _split(marked, [*contents, *tokenizer.control])
    for piece in pieces:
        if piece in tokenizer.control:
            ids += _literal(tokenizer, pending)
            ids.append(tokenizer.control[piece])
            pending, rebuilt = "", rebuilt + pending + piece
        else:
            pending += contents.get(piece, piece)
    return ids + _literal(tokenizer, pending) if rebuilt + pending == text else None


def _literal(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False, parse_special=False) if text else []


def _split(text: str, needles: Sequence[str]) -> list[str]:
    """Cut ``text`` at every needle, longest needle first; the needles are kept."""
    pattern = "|".join(re.escape(needle) for needle in sorted(needles, key=len, reverse=True))
    return [piece for piece in re.split(f"({pattern})", text) if piece]


def _refuse(reason: object = "") -> NoReturn:
    raise _Refused(str(reason)[:500])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(str(pattern)[:64])
