"""Decode many prompts at once with PyTorch, one token a forward, in one rectangular batch.

It suits devices on which a forward of a thousand rows takes little longer than one of ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode_lab.training.batched import attention_in, spread
from paradecode_lab.training.heads.answers import LARGEST, Answer
from paradecode_lab.training.ngrams.own_text import QUESTION_TOKENS, before_the_user

READ = 1 << 14
"""The most places, with padding, of a rectangle of prompts that is read in one forward.

More places need more memory.
"""
LOOK = 16
"""Number of steps between two checks for ended answers.

A higher number checks less often, but computes more tokens after the ends.
"""
FULL = 0.6
"""Ended texts are removed from the rectangle when the share of unended ones is below this."""
GRAPHS = ("cuda",)
"""Types of devices on which a step is recorded as a graph and replayed."""
BUCKET = 64
"""Unit in which the number of places that attention sees grows.

A larger unit needs fewer recorded graphs, but reads more unused places.
"""


@dataclass(eq=False)
class Rectangle:
    """Texts that are being written, with their keys and values.

    Attributes:
        keys, values: [B, G, T, size] for each layer.
        lengths: int64 [B], number of tokens of each text in the cache.
        numbers: int64 [B], index of the text in each row.
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    numbers: Tensor

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the rectangle."""
        for cache in (self.keys, self.values):
            cache[:] = [each[rows] for each in cache]
        self.lengths, self.numbers = self.lengths[rows], self.numbers[rows]


class RectangleWriter:
    """A :class:`paradecode_lab.training.heads.answers.Writer` on PyTorch.

    PyTorch draws the sampled tokens, so they differ from the engine's. Equal arguments give equal
    texts on one machine.

    Args:
        llm: a model on PyTorch.
        model: the network of ``llm``.
        together: number of texts in a round.
    """

    def __init__(self, llm: LLM, model: Transformer, together: int = 1024) -> None:
        self.llm, self.model, self.together = llm, model, together

    @torch.inference_mode()
    def answers(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, layers: tuple[int, ...]
    ) -> list[Answer]:
        """See :class:`Writer`."""
        if not prompts:
            return []
        stops, decode = self.llm.config.eos_tokens, self.llm.tokenizer.decode
        written, of_prompts, of_answers = self._write(prompts, params, layers)
        tokens = [until(own, stops) for own in written.tolist()]
        sizes = [len(p) + len(own) - 1 for p, own in zip(prompts, tokens)]
        parts = [part for number, own in enumerate(tokens)
                 for part in (of_prompts[number], of_answers[number, : len(own) - 1])]  # fmt: skip
        states = np.split(torch.cat(parts).cpu().numpy(), np.cumsum(sizes)[:-1])
        texts = (decode(own[:-1] if own[-1] in stops else own) for own in tokens)
        return [Answer(*each) for each in zip(texts, tokens, states)]

    def sampled(self, prompt: list[int], params: SamplingParams) -> list[Answer]:
        """See :class:`Writer`."""
        return self.answers([prompt] * self.together, params, ())

    def questions(self, number: int, seed: int) -> list[tuple[str, list[int]]]:
        """See :class:`Writer`."""
        params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=QUESTION_TOKENS,
                                seed=(seed + number) % (1 << 31))  # fmt: skip
        asked = [each.text for each in self.sampled(before_the_user(self.llm), params)]
        return [(text, self.llm.chat_tokens([{"role": "user", "content": text}])) for text in asked]

    @torch.inference_mode()
    def states(
        self, texts: Sequence[Sequence[int]], layers: tuple[int, ...]
    ) -> list[NDArray[np.float16]]:
        """See :class:`Writer`."""
        made: dict[int, NDArray[np.float16]] = {}
        for some in _parts(texts):
            found = self._read([texts[i] for i in some], layers, None)[1].cpu().numpy()
            ends = np.cumsum([len(texts[i]) for i in some])
            made |= zip(some, np.split(found, ends[:-1]))
        return [made[number] for number in range(len(texts))]

    def _write(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, layers: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor], Tensor]:
        """Write an answer to each prompt.

        Returns:
            The tokens int64 [B, max_tokens] of the answers, where those after an answer's end are
            arbitrary; for each prompt its states; and the states [B, max_tokens, layers * D] of the
            answers.
        """
        model, count, most, device = self.model, len(prompts), params.max_tokens, self.model.device
        draw = torch.Generator(device).manual_seed(params.seed or 0)
        lengths = torch.tensor([len(each) for each in prompts], device=device)
        longest = int(lengths.max())
        room = _rounded(longest + most)
        shapes = [model.cached(layer) for layer in range(model.config.layers)]
        keys, values = (
            [torch.zeros(count, heads, room, size, dtype=model.dtype, device=device)
             for heads, size in shapes] for _ in "kv"
        )  # fmt: skip
        going = Rectangle(keys, values, lengths, torch.arange(count, device=device))
        first = torch.empty(count, model.config.vocab_size, device=device)
        of_prompts: dict[int, Tensor] = {}
        for some in _parts(prompts):
            rows = torch.tensor(some, device=device)
            last, states = self._read([prompts[i] for i in some], layers, (going, rows))
            first[rows] = model.logits(last)
            of_prompts |= zip(some, states.split([len(prompts[i]) for i in some]))
        stops = torch.tensor([*self.llm.config.eos_tokens], dtype=torch.int64, device=device)
        written = torch.zeros(count, most, dtype=torch.int64, device=device)
        width = len(layers) * model.config.hidden_size
        of_answers = torch.empty(count, most, width, dtype=torch.float16, device=device)
        token, unended = _drawn(first, params, draw), torch.ones_like(written[:, 0]).bool()
        graph: _Graph | None = None
        for step in range(most):
            written[going.numbers, step] = token
            unended &= ~torch.isin(token, stops)
            if step + 1 == most:
                break
            if step % LOOK == LOOK - 1:
                rows = unended.nonzero()[:, 0]
                if not len(rows):
                    break
                if len(rows) < FULL * len(unended):
                    going.keep(rows)
                    token, unended, graph = token[rows], unended[rows], None
            reach = _rounded(longest + step + 1)
            if device.type in GRAPHS and step:  # The first step warms up.
                if graph is None or graph.reach != reach:
                    graph = _Graph(self, going, token, layers, reach)
                logits, kept = graph.run(token)
            else:
                logits, kept = self._step(going, token, layers, reach)
            of_answers[going.numbers, step] = kept
            token = _drawn(logits, params, draw)
        return written, of_prompts, of_answers

    def _read(
        self, prompts: Sequence[Sequence[int]], layers: tuple[int, ...],
        into: tuple[Rectangle, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Read prompts in one forward.

        Args:
            layers: layers whose outputs are returned.
            into: a rectangle that gets the keys and values, and its rows for these prompts.

        Returns:
            The last state [B, D] of each prompt, and float16 [N, layers * D] for all tokens of the
            prompts.
        """
        model, window, device = self.model, self.model.config.sliding_window, self.model.device
        sizes = torch.tensor([len(each) for each in prompts], device=device)
        at = torch.arange(max(len(each) for each in prompts), device=device)
        inside = at < sizes[:, None]
        flat = np.concatenate([np.array(each, np.int64) for each in prompts])
        tokens = torch.from_numpy(flat).to(device)
        seen = at[:, None] >= at
        if window:
            seen &= at[:, None] - at < window
        among = attention_in(inside, seen)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if into is not None:
                for cache, new in ((into[0].keys, k), (into[0].values, v)):
                    cache[layer][into[1], :, : len(at)] = spread(new, inside).transpose(1, 2)
            return among(layer, q, k, v)

        known = model.rows(at.expand(inside.shape)[inside])
        x, kept = model.embed(tokens), list[Tensor]()
        for layer in range(model.config.layers):
            x = model.layer(layer, x, known, attend)
            if layer in layers:
                kept.append(x)
        return x[sizes.cumsum(0) - 1], _beside(x, kept)

    def _step(
        self, going: Rectangle, token: Tensor, layers: tuple[int, ...], longest: int
    ) -> tuple[Tensor, Tensor]:
        """Add one token to each text; return logits [B, V] and states, float16 [B, layers * D].

        Args:
            longest: number of cache places that attention reads; no text may be longer with this
                token.
        """
        model, window = self.model, self.model.config.sliding_window
        rows, places = torch.arange(len(token), device=token.device), going.lengths
        at = torch.arange(longest, device=token.device)
        seen = at <= places[:, None]
        if window:
            seen &= places[:, None] - at < window
        seen = seen[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = going.keys[layer], going.values[layer]
            keys[rows, :, places], values[rows, :, places] = k, v
            # All query heads that share a key head are handled as rows that see its keys.
            grouped = q.unflatten(1, (k.shape[1], -1))
            mixed = F.scaled_dot_product_attention(
                grouped, keys[:, :, :longest], values[:, :, :longest], seen
            )
            return mixed.flatten(1, 2)

        known = model.rows(places)
        x, kept = model.embed(token), list[Tensor]()
        for layer in range(model.config.layers):
            x = model.layer(layer, x, known, attend)
            if layer in layers:
                kept.append(x)
        going.lengths += 1
        return model.logits(x), _beside(x, kept)


class _Graph:
    """A decoding step that is recorded as a CUDA graph.

    Launching its kernels one by one would take longer than running them.
    """

    def __init__(
        self, writer: RectangleWriter, going: Rectangle, token: Tensor, layers: tuple[int, ...],
        reach: int,
    ) -> None:  # fmt: skip
        self.reach, self._token, self._graph = reach, token.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._made = writer._step(going, self._token, layers, reach)

    def run(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Replay ``RectangleWriter._step`` for these tokens.

        The next call overwrites the result.
        """
        self._token.copy_(token)
        self._graph.replay()
        return self._made


def _rounded(places: int) -> int:
    return -(-places // BUCKET) * BUCKET


def until(tokens: list[int], stops: Sequence[int]) -> list[int]:
    """Return the tokens up to and including the first stop token."""
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


def _beside(x: Tensor, kept: list[Tensor]) -> Tensor:
    """Put the outputs of some layers side by side: float16 [N, layers * D].

    Args:
        x: [N, D], a tensor on the right device; its values are not used.
        kept: [N, D] for each layer.
    """
    return torch.cat([x[:, :0], *kept], 1).float().clamp(-LARGEST, LARGEST).half()


def _parts(texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Group texts of similar lengths, and yield their indices.

    A group, padded to its longest text, has at most READ places.
    """
    some: list[int] = []
    for number in sorted(range(len(texts)), key=lambda i: len(texts[i])):
        if some and (len(some) + 1) * len(texts[number]) > READ:
            yield some
            some = []
        some.append(number)
    if some:
        yield some


def _drawn(logits: Tensor, params: SamplingParams, draw: torch.Generator) -> Tensor:
    """Return a token for each row of logits [B, V]: the most likely one, or a sampled one."""
    if not params.temperature:
        return logits.argmax(-1)
    chances = (logits / params.temperature).softmax(-1)
    if params.top_p < 1:
        ranked, ids = chances.sort(-1, descending=True)
        ranked[ranked.cumsum(-1) - ranked >= params.top_p] = 0
        return ids.gather(1, ranked.multinomial(1, generator=draw))[:, 0]
    return chances.multinomial(1, generator=draw)[:, 0]
