"""Write or read the training texts: conversations that the model makes up, or those of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.ngrams.own_text import TOGETHER, own_conversations

FIELD = "--texts"
MOST_BYTES = 1 << 33
LONGEST_LINE = 1 << 24
Round = list[tuple[list[int], list[int]]]
"""Token ids of prompt and answer, for some texts."""


@dataclass(frozen=True, eq=False)
class BlockText:
    """A conversation that is padded or cut to whole blocks.

    Attributes:
        tokens: int32 [n]; n is a multiple of the block, and stop tokens fill the last block.
        start: index of the answer's first token.
        end: index after the answer's first stop token; only padding follows.
    """

    tokens: NDArray[np.int32]
    start: int
    end: int


def make_own(
    path: Path, llm: LLM, count: int, max_tokens: int, seed: int, tick: Callable[[int, int], None]
) -> None:
    """Write ``count`` conversations that the model makes up into a file, one in a line.

    A run that was stopped continues; equal arguments give equal files.
    """

    def rounds(done: int) -> Iterator[Round]:
        return own_conversations(llm, count, max_tokens, seed, done)

    write_rounds(path, count, rounds, tick)


def write_rounds(
    path: Path,
    count: int,
    rounds: Callable[[int], Iterator[Round]],
    tick: Callable[[int, int], None],
) -> None:
    """Write ``count`` texts into a file, one in a line; lines that exist are kept.

    Args:
        rounds: called with the number of texts to skip, a multiple of TOGETHER; yields the other
            texts, TOGETHER at a time.
    """
    done = 0
    if path.exists():
        lines = path.read_bytes().splitlines(keepends=True)
        done = sum(line.endswith(b"\n") for line in lines)
        if done >= count:
            return
        done = done // TOGETHER * TOGETHER  # Texts are made in batches of TOGETHER.
        path.write_bytes(b"".join(lines[:done]))
    with path.open("a", encoding="utf-8") as file:
        for some in rounds(done):
            texts = ({"prompt": prompt, "answer": answer} for prompt, answer in some)
            file.write("".join(json.dumps(text) + "\n" for text in texts))
            file.flush()
            done += len(some)
            tick(done, count)


def read_texts(path: Path, checkpoint: Checkpoint, block: int, length: int) -> list[BlockText]:
    """Read the conversations of a JSONL file; equal ones are returned once.

    A line is an object with ``prompt`` and ``answer``, which are two texts or two lists of token
    ids. Texts are put into the model's chat format, and the answer gets a stop token. If an answer
    ends with a stop token, more stop tokens fill its last block. Other answers, and conversations
    longer than ``length``, are cut to whole blocks. A line may also have such objects in a list,
    ``texts``, as in the file that `train head` collects.

    Raises:
        InvalidInput: a line cannot be used, or no conversation in the file can.
    """
    found: dict[bytes, BlockText] = {}
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise InvalidInput(FIELD, str(path), f"give a file of at most {MOST_BYTES} bytes")
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                for prompt, answer in _entries(f"{FIELD} line {number}", line, checkpoint):
                    text = whole_blocks(prompt, answer, block, length, checkpoint.config.eos_tokens)
                    if text is not None:
                        found.setdefault(blake2b(text.tokens.tobytes()).digest(), text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(FIELD, str(path), f"it cannot be read ({error})") from None
    if not found:
        raise InvalidInput(FIELD, str(path), f"no answer reaches the end of a block of {block}")
    return list(found.values())


def whole_blocks(
    prompt: list[int], answer: list[int], block: int, length: int, ends: tuple[int, ...]
) -> BlockText | None:
    """Pad or cut a text to whole blocks of at most ``length`` tokens; None if no answer remains.

    Args:
        ends: the stop tokens.
    """
    start, tokens = len(prompt), [*prompt, *answer]
    if answer and answer[-1] in ends and -(-len(tokens) // block) * block <= length:
        end = len(tokens)
        tokens += [answer[-1]] * (-end % block)
    else:
        end = min(len(tokens), length) // block * block
        tokens = tokens[:end]
    return BlockText(np.array(tokens, np.int32), start, end) if 0 < start < end else None


def _entries(field: str, line: str, checkpoint: Checkpoint) -> list[tuple[list[int], list[int]]]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    given = entry.get("texts", [entry]) if isinstance(entry, dict) else None
    named = isinstance(given, list) and all(
        isinstance(text, dict) and {"prompt", "answer"} <= text.keys() for text in given
    )
    if given is None or not named:
        raise InvalidInput(field, line[:60], "write a JSON object with prompt and answer")
    return [_pair(field, text["prompt"], text["answer"], checkpoint) for text in given]


def _pair(
    field: str, prompt: Any, answer: Any, checkpoint: Checkpoint
) -> tuple[list[int], list[int]]:
    if isinstance(prompt, str) and isinstance(answer, str):
        return _encoded(prompt, answer, checkpoint)
    return _ids(field, prompt, checkpoint), _ids(field, answer, checkpoint)


def _encoded(prompt: str, answer: str, checkpoint: Checkpoint) -> tuple[list[int], list[int]]:
    tokenizer, template = checkpoint.tokenizer, checkpoint.chat_template
    ids = tokenizer.encode(answer, special=False, parse_special=False)
    stop = [end for end in (tokenizer.eos, *checkpoint.config.eos_tokens) if end is not None]
    if template is None:
        return tokenizer.encode(prompt), ids + stop[:1]
    return template.encode(tokenizer, [{"role": "user", "content": prompt}]), ids + stop[:1]


def _ids(field: str, values: Any, checkpoint: Checkpoint) -> list[int]:
    size = checkpoint.config.vocab_size
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < size for v in values):
        raise InvalidInput(field, values, f"give two texts, or two lists of ids below {size}")
    return values


def digest(texts: Sequence[BlockText]) -> str:
    """Return a digest that identifies the texts of a run."""
    found = blake2b(digest_size=16)
    for text in texts:
        found.update(np.array([text.start, text.end]).tobytes() + text.tokens.tobytes())
    return found.hexdigest()
