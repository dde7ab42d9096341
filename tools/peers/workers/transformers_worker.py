"""Runs transformers' generate, plain or with its prompt lookup."""

from __future__ import annotations

from protocol import Generate, Reply, Settings, Stopwatch, serve


def load(settings: Settings) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    )
    model.eval()
    lookup = settings.get("lookup")
    options = {"prompt_lookup_num_tokens": lookup} if lookup else {}

    class FirstToken:
        """A streamer, which generate() gives the prompt first, and then the tokens of each step."""

        def __init__(self, watch: Stopwatch) -> None:
            self.watch, self.prompt_seen = watch, False

        def put(self, tokens: torch.Tensor) -> None:
            if self.prompt_seen:
                self.watch.first(tokens.numel())
            self.prompt_seen = True

        def end(self) -> None:
            pass

    @torch.inference_mode()
    def generate(prompt: list[int], max_tokens: int, stops: list[int]) -> Reply:
        ids = torch.tensor([prompt])
        watch = Stopwatch()
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(stops) or None,
            pad_token_id=0,
            streamer=FirstToken(watch),
            **options,
        )
        return watch.reply(out[0, len(prompt) :].tolist())

    return generate


if __name__ == "__main__":
    serve(load, ["transformers", "torch"])
