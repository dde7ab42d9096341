"""Turn chat messages into a prompt in the format on which the model was trained."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.sandbox import SandboxedEnvironment
from paradecode.models.template_allowance import allowance
from paradecode.models.template_marks import Marks, find_marks, split
from paradecode.models.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TEMPLATE = 1 << 16
"""Largest number of characters of a template; published ones have up to 20,000."""
MAX_MESSAGES = 1 << 12
MAX_CONTENT = 1 << 21
TOOLS, DOCUMENTS = "tool_use", "rag"
"""Names of templates for conversations with tools, and with documents."""

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
        named: further templates by name; ``tool_use`` replaces the template for conversations with
            tools, and ``rag`` for those with documents.
        begin: id with which every prompt begins, even if the template does not write it; None
            leaves it to the template.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        named: Mapping[str, str] | None = None,
        begin: int | None = None,
    ) -> None:
        if len(source) > MAX_TEMPLATE:
            raise InvalidModel("chat_template", f"{len(source)} characters", "it is too long")
        self.source, self.begin = source, begin
        self._tokens = dict(tokens or {})
        self.named = {
            name: ChatTemplate(text, tokens, None, begin) for name, text in (named or {}).items()
        }
        self._marks: tuple[Tokenizer, Marks] | None = None

    @property
    def sources(self) -> dict[str, str]:
        """Name -> Jinja text of all templates."""
        return {"default": self.source, **{name: t.source for name, t in self.named.items()}}

    def shows(self, variable: str) -> bool:
        """Return whether the template uses ``variable``, which is ``tools`` or ``documents``."""
        source = self._for({variable: True}).source
        return re.search(rf"\b{variable}\b", source) is not None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """Return the prompt as text.

        Args:
            messages: mappings with ``role`` (one of ROLES) and ``content`` (a string).
            add_generation_prompt: whether the prompt ends with the beginning of the assistant's
                turn.
            kwargs: more variables, for example ``tools`` or ``enable_thinking``.

        Raises:
            InvalidInput: the messages are wrong, or the template refuses them.
            InvalidModel: the template is broken or exceeds its limits.
        """
        check_messages(messages)
        messages = [{**message, "content": _content(message)} for message in messages]
        return self._for(kwargs).rendered(messages, add_generation_prompt, kwargs)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Return the prompt as token ids; message text never becomes a token that marks turns.

        The ids are those of ``render``, with one exception. If a message contains the text of a
        control token, or of another token that the template itself writes, it stays text. So a user
        cannot end the turn and write as the system. Earlier answers and system messages may contain
        tokens that are visible in an output and mark no turn, such as ``<think>``.

        Raises:
            InvalidInput, InvalidModel: as ``render``; also if a message contains the text of such a
                token, and the template changes messages so that its place is unknown.
        """
        check_messages(messages)
        chosen = self._for(kwargs)
        ids = chosen._encode(tokenizer, messages, add_generation_prompt, kwargs)
        begin = self.begin
        return ids if begin is None or ids[:1] == [begin] else [begin, *ids]

    def marks(self, tokenizer: Tokenizer) -> Marks:
        """Return the texts that the template writes as single tokens."""
        if self._marks is None or self._marks[0] is not tokenizer:
            self._marks = tokenizer, find_marks(self._probe, self.source, tokenizer)
        return self._marks[1]

    def rendered(
        self, messages: Sequence[Message], add_generation_prompt: bool, extra: Mapping[str, Any]
    ) -> str:
        """Return the text of checked messages; errors as ``render``."""
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
                RecursionError, AttributeError, MemoryError, SyntaxError,
                AssertionError) as error:  # fmt: skip
            # Jinja writes Python, which may refuse it: SyntaxError.
            raise InvalidModel(
                "chat_template", f"{type(error).__name__}: {error}", "use another template"
            ) from None

    def _for(self, variables: Mapping[str, Any]) -> ChatTemplate:
        """Return the template for a conversation with these variables."""
        for name, variable in ((TOOLS, "tools"), (DOCUMENTS, "documents")):
            if variables.get(variable) and name in self.named:
                return self.named[name]
        return self

    def _probe(self, messages: Sequence[Message], prompt: bool) -> str | None:
        """Return a conversation as text, or None if the template refuses it."""
        try:
            return self.rendered(messages, prompt, {})
        except (InvalidInput, InvalidModel):
            return None

    def _encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
    ) -> list[int]:
        messages = [{**message, "content": _content(message)} for message in messages]
        text = self.rendered(messages, add_generation_prompt, extra)
        marks = self.marks(tokenizer)
        others = [{k: v for k, v in m.items() if k != "content"} for m in messages]
        for string in _strings([others, extra]):
            if any(token in string for token in marks.closed):
                raise InvalidInput("messages", string, "remove the control token from this field")
        barred = [marks.barred(message["role"]) for message in messages]
        contents = [message["content"] for message in messages]
        if found := [t for t in marks.merged if any(t in content for content in contents)]:
            fix = "remove it: the model's template marks turns with it"
            raise InvalidInput("messages.content", found[0], fix)
        forged = [t for names, c in zip(barred, contents) for t in names if t in c]
        if not forged:
            return tokenizer.encode(text, special=False)
        # Placeholders instead of the contents show the place of each message in the text.
        nonce = secrets.token_hex(8)
        places = [f"\ue000{nonce}.{index}\ue001" for index in range(len(messages))]
        marked_messages = [{**m, "content": mark} for m, mark in zip(messages, places)]
        marked = self.rendered(marked_messages, add_generation_prompt, extra)
        for variant in (contents, [content.strip() for content in contents]):
            said = dict(zip(places, zip(variant, barred)))
            ids = _encode_marked(tokenizer, marks, marked, said, text)
            if ids is not None:
                return ids
        fix = "remove the control token; this model's template cannot keep it apart from its own"
        raise InvalidInput("messages.content", forged[0], fix)

    @functools.cached_property
    def _compiled(self) -> Any:
        environment = SandboxedEnvironment()
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self.source)


def find_template(sources: Mapping[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the chat template of a model, or None if it is not a chat model.

    The template is the one named ``default``, else ``tool_use``, else ChatML if the vocabulary has
    its tokens.

    Args:
        sources: name -> Jinja text of all templates.
    """
    source = sources.get("default", sources.get(TOOLS))
    if source is None and None not in map(tokenizer.token_id, ("<|im_start|>", "<|im_end|>")):
        source = CHATML
    if source is None:
        return None
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    tokens = {name: tokenizer.token(index) for name, index in ids.items() if index is not None}
    named = {name: text for name, text in sources.items() if name != "default"}
    return ChatTemplate(source, tokens, named, tokenizer.bos if tokenizer.starts_chats else None)


def check_messages(messages: Sequence[Message]) -> None:
    """Raise InvalidInput, which says what is wrong, unless this is a conversation."""
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
    """Return the content of a message; it may be missing beside an assistant's tool calls."""
    content = message.get("content")
    calls = message.get("role") == "assistant" and message.get("tool_calls")
    return "" if content is None and calls else content


def _strings(value: object) -> Iterator[str]:
    """Yield every string inside a JSON value."""
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
    tokenizer: Tokenizer,
    marks: Marks,
    marked: str,
    said: Mapping[str, tuple[str, Collection[str]]],
    text: str,
) -> list[int] | None:
    """Return the ids of ``text``, or None if the placeholders do not fit it.

    Tokens that messages contain stay text.

    Args:
        marked: the text with placeholders instead of messages.
        said: placeholder -> message, and the tokens that stay text in it.
    """
    ids: list[int] = []
    pending = rebuilt = ""

    def words() -> list[int]:
        return tokenizer.encode(pending, False, False, marks.written) if pending else []

    for piece in split(marked, [*said, *marks.written]):
        content, barred = said.get(piece, (piece, ()))
        allowed = marks.written.keys() - set(barred)
        for part in split(content, allowed):
            rebuilt += part
            if part in allowed:
                ids += [*words(), marks.written[part]]
                pending = ""
            else:
                pending += part
    return ids + words() if rebuilt == text else None


def _refuse(reason: object = "") -> NoReturn:
    raise _Refused(str(reason)[:500])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(str(pattern)[:64])
