"""Use Paradecode as the ``custom_generate`` of transformers.

A model of transformers keeps its tokenizer, its chat template and its ``generate``; an
:class:`paradecode.LLM` of the same weights decodes the tokens::

    llm = LLM(model.name_or_path)
    model.generate(**inputs, max_new_tokens=64, custom_generate=decode_with(llm))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM

UNDERSTOOD = {
    "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
    "RepetitionPenaltyLogitsProcessor", "MaxLengthCriteria", "EosTokenCriteria",
}  # fmt: skip
"""Processors and criteria of transformers whose settings become sampling parameters here."""


def decode_with(llm: LLM, **settings: Any) -> Callable[..., Any]:
    """Return a ``custom_generate`` for ``generate``: ``llm`` decodes all prompts as one batch.

    Greedy outputs equal those of transformers, except for numerical ties. Sampled outputs follow
    the same distribution; ``torch.manual_seed`` makes them repeatable.

    Args:
        llm: an LLM with the same weights.
        settings: other settings of :meth:`paradecode.LLM.complete`, such as ``decoder``.

    The returned function gives int64 [prompts, length]: each prompt as it was given, its output,
    and padding. It raises InvalidInput for another vocabulary, and for settings of ``generate``
    that Paradecode does not support (beams, other processors, other criteria).
    """

    def custom_generate(
        model: Any,
        input_ids: Any,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        **inputs: Any,
    ) -> Any:
        import torch

        config, attention_mask = generation_config, inputs.get("attention_mask")
        _check(llm, model, config, [*logits_processor, *stopping_criteria])
        shown = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, shown)]
        made = llm.complete(prompts, _params(config, input_ids.shape[1]), **settings)
        for answer in made:
            if answer.error is not None:
                raise answer.error
        longest = max(len(answer.token_ids) for answer in made)
        pad = config._pad_token_tensor
        ended = torch.full((len(made), longest), 0 if pad is None else int(pad))
        for row, answer in zip(ended, made):
            row[: len(answer.token_ids)] = torch.tensor(answer.token_ids)
        return torch.cat([input_ids, ended.to(input_ids.device)], dim=1)

    return custom_generate


def _check(llm: LLM, model: Any, config: Any, steps: list[Any]) -> None:
    if model.config.vocab_size != llm.config.vocab_size:
        fix = f"{llm.model} has {llm.config.vocab_size} tokens: open the same weights"
        raise InvalidInput("model", f"{model.config.vocab_size} tokens", fix)
    for name, plain in (("num_beams", 1), ("return_dict_in_generate", False)):
        if (value := getattr(config, name, None) or plain) != plain:
            raise InvalidInput(name, value, f"leave it at {plain}: Paradecode has no other")
    for step in steps:
        if (kind := type(step).__name__) not in UNDERSTOOD:
            raise InvalidInput("generate", kind, "leave out the setting that adds it")


def _params(config: Any, prompt_length: int) -> SamplingParams:
    """Return the sampling parameters of a ``GenerationConfig``."""
    import torch

    ends = config._eos_token_tensor
    given: dict[str, Any] = {
        "max_tokens": config.max_length - prompt_length,
        "ignore_eos": True,
        "stop_token_ids": [] if ends is None else ends.tolist(),
        "repetition_penalty": config.repetition_penalty or 1.0,
        "temperature": 0.0,
    }
    if config.do_sample:
        given |= {
            "temperature": 1.0 if config.temperature is None else config.temperature,
            "top_k": config.top_k or 0,
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "min_p": config.min_p or 0.0,
            "seed": int(torch.randint(1 << 31, ())),
        }
    return SamplingParams(**given)
