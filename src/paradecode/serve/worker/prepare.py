"""Make requests to the engine from a message: tokenize, apply the chat template, check settings.

Nothing here touches the engine. It runs in the reading thread, while the engine steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.constraints.compile import GRAMMARS
from paradecode.constraints.thoughts import OPEN
from paradecode.constraints.trial import GrammarTrial
from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import ALIASES, SamplingParams
from paradecode.engine.request import GenerationRequest
from paradecode.llm import LLM
from paradecode.methods.choice import AUTO
from paradecode.methods.specs import Spec, parse
from paradecode.serve.failures import TooLong
from paradecode.serve.wire import Generate, PromptInput
from paradecode.serve.worker.output import Speller
from paradecode.serve.worker.settings import WorkerSettings

MAX_SCORES = 1 << 16
MAX_CANDIDATES = 64
"""The most tokens of all candidates together, as a multiple of the context length."""
THOUGHT = 8
"""The number of a prompt's last tokens that are searched for the mark that opens reasoning."""
MOST_TOKENS = 1 << 18
"""The most tokens that are turned into one text.

A text that is only tokenized has the same limit.
"""
MOST_BYTES = 1 << 21
"""The most bytes of all token texts in one answer, which is one line.

JSON may write six bytes for one byte of text.
"""
PREDICTED = "predicted-output"
MAX_TOKENS = {"max_tokens", *(alias for alias, name in ALIASES.items() if name == "max_tokens")}


class Preparer:
    """Prepares the requests of one model."""

    def __init__(self, llm: LLM, settings: WorkerSettings, speller: Speller) -> None:
        self._llm, self._settings, self._speller = llm, settings, speller
        self._trial = GrammarTrial()
        self._most = llm.config.context_length * llm.tokenizer.longest

    def warm(self) -> None:
        """Do at the start what the first constrained request, and all after it, would wait for.

        This imports modules, makes a table of the vocabulary, and starts the process that tries
        grammars.
        """
        kind, value = "choice", ["a"]
        # If the library is missing, or the tokenizer cannot be used, each request gets an error
        # that says so.
        with ThreadPoolExecutor(1) as beside, suppress(InvalidInput, OSError):
            if "autoregressive" in self._llm.families:
                beside.submit(self._trial.check, kind, value)
            self._llm.requests([0], None, {"constraint": {"type": kind, "value": value}})

    def tokens(self, prompt: PromptInput) -> list[int]:
        """Return the token ids of a prompt.

        A text that cannot fit is refused before it is tokenized.
        """
        if prompt.tokens is not None:
            return prompt.tokens
        if prompt.text is not None:
            self._check_length(len(prompt.text))
            return self._llm.encode(prompt.text)
        assert prompt.messages is not None
        contents = [prompt.begun, *(message.get("content") for message in prompt.messages)]
        self._check_length(sum(len(text) for text in contents if isinstance(text, str)))
        ids = self._llm.chat_tokens(prompt.messages, prompt.tools, **prompt.variables or {})
        if not prompt.begun:
            return ids
        # The beginning of an answer is tokenized by itself, as the model would write it after the
        # template. Names of control tokens are text in it, as in all texts from users.
        begun = self._llm.tokenizer.encode(prompt.begun, special=False, parse_special=False)
        return ids + begun

    def thinks(self, prompt: PromptInput, ids: Sequence[int]) -> bool:
        """Return whether a conversation with tokens ``ids`` ends with the mark before reasoning."""
        if prompt.messages is None:
            return False
        end = self._llm.tokenizer.decode([*ids[-THOUGHT:]], skip_special=False)
        return end.rstrip().endswith(OPEN.decode())

    def tokenized(self, prompt: PromptInput) -> tuple[list[int], list[str]]:
        """Return a prompt's token ids, and the text of each.

        Raise InvalidInput if there are too many.
        """
        tokens = self.tokens(prompt)
        if len(tokens) > MOST_TOKENS:
            fix = f"give one of at most {MOST_TOKENS} tokens"
            raise InvalidInput("prompt", f"{len(tokens)} tokens", fix)
        self._check_bytes("prompt", Counter(tokens))
        return tokens, [self._speller.text(token) for token in tokens]

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids, control tokens included.

        Raises InvalidInput for ids that the model does not have, or for a text that is too long.
        """
        top = max(tokens, default=0)
        if top >= self._llm.config.vocab_size:
            fix = f"token ids go up to {self._llm.config.vocab_size - 1}"
            raise InvalidInput("tokens", top, fix)
        self._check_bytes("tokens", Counter(tokens))
        return self._llm.tokenizer.decode(tokens, skip_special=False)

    def requests(self, message: Generate) -> list[GenerationRequest]:
        """Return one request to the engine for each of the ``n`` outputs. Raise InvalidInput."""
        ids = self.tokens(message.prompt)
        context = self._llm.config.context_length
        if len(ids) >= context:
            raise TooLong(f"{len(ids)} tokens", context)
        if message.reads is not None:
            return [self._reading(ids, message)]
        sampling = dict(message.sampling)
        room, given = self._room(len(ids)), sampling.keys() & MAX_TOKENS
        if not given:
            sampling["max_tokens"] = min(self._settings.max_tokens, room)
        for name in given:  # Agents want tens of thousands of tokens from any model.
            if isinstance(sampling[name], int):
                sampling[name] = min(sampling[name], room)
        if message.search is not None:  # Each branch is a request of its own.
            sampling["n"] = 1
        if message.prediction is not None:
            self._check_length(len(message.prediction), "prediction")
        settings: dict[str, Any] = {
            "salt": message.salt, "owner": message.key, "priority": message.priority,
            "deadline": message.deadline, "prediction": message.prediction,
            "decoder": self._decoder(message),
        }  # fmt: skip
        if message.constraint is not None:
            if message.constraint.type == "python" and not self._settings.python_constraints:
                fix = "choose another: this server was started without --python-constraints"
                raise InvalidInput("constraint.type", "python", fix)
            if message.constraint.type in GRAMMARS and "autoregressive" in self._llm.families:
                self._trial.check(message.constraint.type, message.constraint.value)
            settings["constraint"] = vars(message.constraint)
        inside = self.thinks(message.prompt, ids)
        bounded = message.thoughts is not None or (inside and message.constraint is not None)
        if bounded and self._llm.families == ("autoregressive",):
            # What the output must be holds behind the reasoning that the prompt has opened.
            value = {"inside": inside, "then": settings.get("constraint")}
            value |= {} if message.thoughts is None else {"budget": message.thoughts}
            settings["constraint"] = {"type": "thoughts", "value": value}
        return self._llm.requests(ids, SamplingParams.from_mapping(sampling), settings)

    def _reading(self, ids: list[int], message: Generate) -> GenerationRequest:
        if len(ids) * (message.top + 1) > MAX_SCORES:
            fix = f"prompt tokens times entries of each are at most {MAX_SCORES}"
            raise InvalidInput("prompt_logprobs", message.top, fix)
        of_request: dict[str, Any] = {
            "salt": message.salt, "owner": message.key, "priority": message.priority,
            "deadline": message.deadline,
        }  # fmt: skip
        if message.reads == "candidates":
            sizes = map(len, message.candidates)
            self._check_length(sum(sizes), "candidates", MAX_CANDIDATES)
            return self._llm.ranking(ids, message.candidates, **of_request)
        wanted: dict[str, Any] = (
            {"top": message.top} if message.reads == "logprobs" else {"hidden": True}
        )
        return self._llm.reading(ids, **wanted, **of_request)

    def _decoder(self, message: Generate) -> Spec | str | None:
        asked = message.decoder
        if isinstance(asked, dict) and asked.keys() == {"method"}:
            asked = asked["method"]
        if asked is None:
            predicts = message.prediction is not None and "autoregressive" in self._llm.families
            return parse(PREDICTED) if predicts else self._llm.decoder
        if asked == "none":  # Plain decoding, named differently in each family.
            return None
        if asked == AUTO:
            return AUTO
        spec = parse(asked, trusted=False)
        if spec.draft_model is not None:
            raise InvalidInput(
                "decoder.model", spec.draft_model, "leave it out: it is the server's"
            )
        return spec

    def _room(self, prompt: int) -> int:
        """Return the most tokens that an output may have after a prompt of ``prompt`` tokens."""
        engine = self._llm.engine
        room = engine.longest - PAGE - engine.limits.draft_tokens - prompt
        return max(1, min(self._llm.config.context_length - prompt, room))

    def _check_bytes(self, field: str, counts: Mapping[int, int]) -> None:
        """Raise InvalidInput if the texts of tokens are too long.

        ``counts`` says how many times each token is written.
        """
        size = sum(count * len(self._speller.bytes(token)) for token, count in counts.items())
        if size > MOST_BYTES:
            fix = f"give tokens whose texts have at most {MOST_BYTES} bytes together"
            raise InvalidInput(field, f"{size} bytes of text", fix)

    def _check_length(self, characters: int, field: str = "prompt", times: int = 1) -> None:
        context = self._llm.config.context_length
        if characters > self._most * times:
            if field == "prompt":
                raise TooLong(f"{characters} characters", context)
            fix = f"the model's context is {context} tokens"
            raise InvalidInput(field, f"{characters} characters", fix)
