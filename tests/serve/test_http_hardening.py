"""A request cannot load or run anything, exceed bounds, use wrong types, or be too large."""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from http_server import JSON, FakePool, Running, running, settings

from paradecode.core.errors import InvalidInput
from paradecode.serve import security, strict_json
from repository import ROOT

SERVE = Path(security.__file__).parent


def send(server: Running, body: bytes, path: str = "/v1/completions", **headers: str) -> Any:
    return server.client.post(path, content=body, headers={**JSON, **headers})


# Nothing in a request is run, opened or fetched.


def test_no_source_of_the_server_can_run_what_it_reads() -> None:
    bad = {"pickle", "dill", "marshal", "shelve", "cloudpickle", "torch", "requests", "urllib3"}
    for path in SERVE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
                assert not {name.split(".")[0] for name in names} & bad, path
                assert "urllib.request" not in names, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path


@pytest.mark.parametrize(
    "field",
    ["prompt_embeds", "logits_processors", "chat_template", "chat_template_kwargs"],
)
def test_fields_that_would_load_or_run_something(server: Running, field: str) -> None:
    response = server.chat(**{field: "x"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert server.pool.seen == []


@pytest.mark.parametrize(
    "field",
    ["trust_remote_code", "draft_model", "lora", "adapter", "model_path", "custom_logit_processor"],
)
def test_unknown_fields_of_other_servers_load_nothing(server: Running, field: str) -> None:
    """Unknown fields are named as ignored in the answer, and no value reaches the worker."""
    response = server.chat(**{field: "secret-x"})
    assert response.status_code == 200
    assert field in response.headers["x-paradecode-ignored"]
    assert "secret-x" not in repr(server.pool.seen)


@pytest.mark.parametrize("model", ["/etc/passwd", "../tiny", "tiny\0", "http://127.0.0.1/x", ""])
def test_models_are_names_of_the_server(server: Running, model: str) -> None:
    assert server.chat(model=model).status_code == 404
    assert server.pool.seen == []


# A value out of bounds is refused, and not replaced by the bound.


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 0), ("n", 129), ("n", -1), ("logprobs", 21), ("logprobs", -1), ("stop", ["x"] * 17),
     ("stop", "x" * 1025), ("stop", ""), ("logit_bias", {str(i): 1 for i in range(1025)}),
     ("logit_bias", {"5": 101}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
     ("logit_bias", {"1": 1, "01": 2}), ("max_tokens", -1), ("max_tokens", 1 << 21),
     ("min_tokens", -1), ("temperature", 2.1), ("temperature", -0.1),
     ("top_p", 0), ("top_p", 1.1), ("min_p", -0.1), ("top_k", -2), ("top_k", 1 << 31),
     ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
     ("stop_token_ids", [-1]), ("stop_token_ids", [1] * 1025),
     ("priority", 101), ("deadline", 0), ("deadline", 1e9), ("prompt", "x" * ((1 << 21) + 1)),
     ("prompt", []), ("prompt", [[]]), ("prompt", [-1]), ("prompt", ["a"] * 65),
     ("speculative", {f"k{i}": 1 for i in range(33)}), ("speculative", "x" * 1025),
     ("guided_choice", ["x"] * 1025), ("guided_choice", []), ("guided_choice", [""]),
     ("guided_regex", "x" * 65537), ("guided_grammar", ""), ("cache_salt", ""),
     ("best_of", 65)],
)  # fmt: skip
def test_bounds(server: Running, field: str, value: Any) -> None:
    response = server.complete(**{field: value})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"].startswith(field if field != "prompt" else ("prompt", "n")), error
    assert len(response.content) < 1500  # Large values are not sent back.
    assert server.pool.seen == []


def test_outputs_of_one_request(server: Running) -> None:
    assert server.complete(prompt=["a"] * 8, n=8).status_code == 200
    assert server.complete(prompt=["a"] * 8, n=9).status_code == 400


# Values of a wrong type are refused.


@pytest.mark.parametrize(
    "body",
    [b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
     b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "temperature": -Infinity}',
     b'{"prompt": "a", "n": true}', b'{"prompt": "a", "n": 1.0}', b'{"prompt": "a", "n": "1"}',
     b'{"prompt": "a", "stream": 1}', b'{"prompt": "a", "temperature": false}',
     b'{"prompt": "a", "seed": 99999999999999999999999}', b'{"prompt": [true]}',
     b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}',
     b'{"prompt": "a", "stop": "\\udfff"}', b'{"\\ud800": 1, "prompt": "a"}',
     b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "guided_json": {"a": 1, "a": 2}}',
     b'{"prompt": "a", "guided_json": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
     b"[" * 100000, b'{"a":' * 100000, b"\xff\xfe{", b"\xef\xbb\xbf{}", "{}".encode("utf-16"),
     b"", b"null", b"[]", b'"x"', b"1", b"{", b'{"prompt": }', b"{}x", b'{"prompt": 1}',
     b'{"prompt": {"a": 1}}', b"{'prompt': 'a'}", b'{"prompt": "a\x00b\nc"}'],
    ids=range(35),
)  # fmt: skip
def test_types(server: Running, body: bytes) -> None:
    response = send(server, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert server.pool.seen == []


def test_many_small_values_are_too_many() -> None:
    with pytest.raises(InvalidInput, match="values"):
        strict_json.read(b"[" + b"0," * (1 << 20) + b"0]")
    assert strict_json.read(b'{"a": [1, -9223372036854775808, 18446744073709551615, 1.5]}')


def test_depth_is_exact() -> None:
    fits = b"[" * strict_json.MAX_DEPTH + b"]" * strict_json.MAX_DEPTH
    assert strict_json.read(fits) is not None
    with pytest.raises(InvalidInput, match="levels"):
        strict_json.read(b"[" + fits + b"]")


def test_content_types(server: Running) -> None:
    body = json.dumps({"prompt": "a"}).encode()
    good = ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"]
    for kind in good:
        assert send(server, body, **{"content-type": kind}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert send(server, body, **{"content-type": kind}).status_code == 415
    for coding in ("br", "gzip, gzip", "compress"):
        refused = send(server, body, **{"content-encoding": coding})
        assert refused.status_code == 415
        assert refused.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
def test_compressed_bodies(server: Running, coding: str, pack: Callable[[bytes], bytes]) -> None:
    def status(body: bytes, coding: str = coding) -> int:
        return send(server, body, **{"content-encoding": coding}).status_code

    plain = json.dumps({"prompt": "a", "metadata": {str(i): "b" for i in range(9)}}).encode()
    assert (
        status(pack(plain))
        == status(pack(plain), coding.upper())
        == status(plain, "identity")
        == 200
    )
    for broken in (plain, pack(plain)[:-12], b"", pack(plain)[:20] + b"x" * 20):
        assert status(broken) == 400
    assert status(pack(b" " * 4_000_000)) == 413  # A thousand times as large as what was sent.
    noise = random.Random(1).randbytes(100_000).hex().encode()
    assert status(pack(noise * 25)) == 413  # More than a body may have.


# Bodies that are too large are refused.


def test_bodies_are_bounded() -> None:
    pool = FakePool()
    with running(settings(body_bytes=1000), pool) as server:
        assert send(server, b" " * 1001).status_code == 413
        pieces = iter([b" " * 600] * 2)
        response = server.client.post("/v1/completions", content=pieces, headers=JSON)
        assert response.status_code == 413
        assert server.complete().status_code == 200


# Dependencies whose classes are extended, or which parse input, may change with a version.


@pytest.mark.parametrize("extra", ["serve", "ray", "constraints"])
def test_dependencies_are_bounded_below_and_above(extra: str) -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (listed,) = re.findall(rf"^{extra} = (\[.*\])$", text, re.MULTILINE)
    for requirement in json.loads(listed):
        assert re.search(r">=[\d.]+,<[\d.]+$", requirement), requirement
