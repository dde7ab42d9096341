"""Requests of real client packages, each in a function. Run as ``asking.py NAME URL``.

The script runs in an environment that has the packages, and prints the answers as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

USER = [{"role": "user", "content": "Name a metal."}]
MODEL = "tiny"
INPUT = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 2}},
        "required": ["city"]}  # fmt: skip


def openai(url: str) -> Any:
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class City(BaseModel):
        city: str = Field(max_length=2)

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    parsed = client.responses.parse(model=MODEL, input="Which?", text_format=City)
    tool = {"type": "function", "name": "look", "parameters": CITY, "strict": True}
    called = client.responses.create(
        model=MODEL, input="Look.", tools=[tool], tool_choice={"type": "function", "name": "look"}
    )
    with client.responses.stream(
        model=MODEL, input="Look.", tools=[tool], tool_choice="required"
    ) as stream:
        kinds = [event.type for event in stream]
    scored = client.completions.create(
        model=MODEL, prompt="abc", echo=True, logprobs=1, max_tokens=0
    )
    vectors = client.embeddings.create(model=MODEL, input=["abc", "abd"])
    return {
        "parsed": parsed.output_parsed.city,
        "called": json.loads(called.output[0].arguments)["city"],
        "streamed": kinds[-1],
        "text": scored.choices[0].text,
        "logprobs": scored.choices[0].logprobs.token_logprobs,
        "length": sum(x * x for x in vectors.data[0].embedding),
    }


def anthropic(url: str) -> Any:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none")
    asked = {
        "model": MODEL, "max_tokens": 64, "messages": USER, "extra_body": {"temperature": 0},
    }  # fmt: skip
    whole = client.messages.create(**asked)
    tools = [{"name": "look", "input_schema": CITY}]
    called = client.messages.create(**asked, tools=tools, tool_choice={"type": "any"})
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    first = next(character for character in text if not character.isspace())
    stopped = client.messages.create(**asked, stop_sequences=[first])
    counted = client.messages.count_tokens(model=MODEL, messages=USER)
    texts = {whole.content[0].text, text, last.content[0].text}
    return {
        "type": whole.content[0].type, "reason": called.stop_reason,
        "city": called.content[0].input["city"], "texts": len(texts),
        "tokens": last.usage.output_tokens,
        "stopped": [stopped.stop_reason, stopped.stop_sequence == first],
        "counted": counted.input_tokens == sum(last.usage.model_dump(include=INPUT).values()),
    }  # fmt: skip


def ollama(url: str) -> Any:
    from ollama import Client, ResponseError

    client, options = Client(host=url), {"num_predict": 8, "temperature": 0}
    asked = {"model": MODEL, "messages": USER, "options": options}
    whole = client.chat(**asked)
    parts = [*client.chat(**asked, stream=True)]
    text = client.generate(model=MODEL, prompt="abc", raw=True, options=options)
    made = client.chat(**{**asked, "options": {"num_predict": 64}}, format=CITY)
    try:
        client.chat(model="nothing", messages=USER)
        refused = ""
    except ResponseError as error:
        refused = f"{error.status_code} {error.error}"
    return {
        "models": [found.model for found in client.list().models],
        "running": [found.context_length for found in client.ps().models],
        "able": client.show(MODEL).capabilities,
        "same": "".join(part.message.content for part in parts) == whole.message.content,
        "tokens": [whole.eval_count, parts[-1].eval_count, text.eval_count],
        "text": text.response,
        "city": len(json.loads(made.message.content)["city"]),
        "refused": refused,
    }


def langchain(url: str) -> Any:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    model = ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="none", max_tokens=64, temperature=0
    )
    tool = {"type": "function", "function": {"name": "look", "parameters": CITY}}
    called = model.bind_tools([tool], tool_choice="look").invoke("Look.")
    embed = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    return {
        "keys": sorted(called.tool_calls[0]["args"]), "invalid": len(called.invalid_tool_calls),
        "size": len(embed.embed_query("abc")),
        "chunks": len([*model.stream("Say it.")]) > 1,
    }  # fmt: skip


def langchain_agents(url: str, task: str) -> Any:
    """Let agents look up the weather over each API: as text, as a class, and streamed."""
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ProviderStrategy
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Report(BaseModel):
        city: str
        degrees: int

    def weather(city: str) -> str:
        """Return the weather in a city."""
        return f"{city}: 21 degrees"

    here = {"model": "qwen", "api_key": "none"}
    models = {
        "chat": ChatOpenAI(**here, base_url=f"{url}/v1"),
        "responses": ChatOpenAI(**here, base_url=f"{url}/v1", use_responses_api=True),
        "messages": ChatAnthropic(**here, base_url=url),
    }
    found: dict[str, Any] = {}
    for name, model in models.items():
        asked = {"messages": [{"role": "user", "content": task}]}
        done = create_agent(model, [weather]).invoke(asked)
        found[name] = [message.text for message in done["messages"] if message.type != "human"]
        for kind, form in (("tool", Report), ("schema", ProviderStrategy(Report))):
            typed = create_agent(model, [weather], response_format=form).invoke(asked)
            found[f"{name}, {kind}"] = typed["structured_response"].model_dump()
        parts = create_agent(model, [weather]).stream(asked, stream_mode="messages")
        found[f"{name}, streamed"] = "".join(part.text for part, _ in parts if part.type != "tool")
    return found


def litellm(url: str) -> Any:
    import litellm as lite

    asked = {"model": f"openai/{MODEL}", "messages": USER, "max_tokens": 8, "temperature": 0}
    where = {"api_base": f"{url}/v1", "api_key": "none"}
    whole = lite.completion(**asked, **where)
    parts = lite.completion(**asked, **where, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    same = text == whole.choices[0].message.content
    return {"tokens": whole.usage.completion_tokens, "same": same}


def instructor(url: str) -> Any:
    import instructor as structured
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class City(BaseModel):
        city: str = Field(max_length=2)

    found = {}
    # The mode JSON sends no schema, so only the model could follow one.
    for mode in ("TOOLS", "JSON_SCHEMA"):
        client = structured.from_openai(
            OpenAI(base_url=f"{url}/v1", api_key="none"), mode=structured.Mode[mode]
        )
        made = client.chat.completions.create(
            model=MODEL, messages=USER, response_model=City, max_retries=0, max_tokens=64
        )
        found[mode] = type(made).__name__
    return found


def lm_eval(url: str, folder: str) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data.jsonl"
        rows = [
            {"question": "abcabcab", "choices": ["c", "x", "ca"], "answer": 0},
            {"question": "one two one two one", "choices": [" two", " six"], "answer": 0},
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {
            "task": "local", "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(data)}}, "output_type": "multiple_choice",
            "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "target_delimiter": "",
            "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
        }  # fmt: skip
        model = {
            "model": MODEL, "base_url": f"{url}/v1/completions", "tokenizer": folder,
            "tokenizer_backend": "huggingface", "num_concurrent": 2, "max_length": 512,
        }  # fmt: skip
        found = simple_evaluate(
            "local-completions", model_args=model, tasks=[task], task_manager=TaskManager(),
            bootstrap_iters=0, log_samples=True,
        )  # fmt: skip
    scores = []
    for sample in found["samples"]["local"]:
        for argument, answer in zip(sample["arguments"], sample["resps"], strict=True):
            scores.append([*argument, *answer[0]])
    return {"scores": scores}


def guidellm(url: str, folder: str) -> Any:
    """Run guidellm's load in the form of each route, and return what it counted."""
    found = {}
    for route in ("/v1/chat/completions", "/v1/completions"):
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report.json"
            options = {
                "backend": f"kind=openai_http,target={url},model={MODEL},request_format={route}",
                "profile": "kind=concurrent,streams=2",
                "constraint": "kind=max_requests,count=6",
                "tokenizer": f"kind=huggingface_auto,model={folder}",
                "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
                "output": f"kind=json,path={report}",
            }
            words = [word for name, value in options.items() for word in (f"--{name}", value)]
            program = Path(sys.executable).with_name("guidellm")
            command = [str(program), "run", "--disable-console", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (benchmark,) = json.loads(report.read_text("utf-8"))["benchmarks"]
        done = benchmark["requests"]["successful"]
        found[route] = {
            "done": len(done), "failed": len(benchmark["requests"]["errored"]),
            "tokens": sorted({one["output_metrics"]["text_tokens"] for one in done}),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print("\n" + json.dumps(globals()[name](*arguments)))
