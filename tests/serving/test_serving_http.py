"""Responses of the server over HTTP, with a scripted network and in this process."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from support.serving_engines import ScriptedEngine, models_of

from giaann_dask.serving.app import build_app
from giaann_dask.serving.serving_options import Limits, QueueOptions, ServingOptions

PATH = "/v1/completions"
TEXT = " to the baker before the sun rise and home"
SLOW = {"prompt": "slow mill"}
JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(engine: ScriptedEngine, **options: Any) -> Iterator[TestClient]:
    app = build_app(models_of(engine), ServingOptions(**options))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.close()


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[TestClient]:
    with serving(engine) as client:
        yield client


def events(text: str) -> list[Any]:
    *sent, last = text.split("\n\n")
    assert last == ""
    assert all(event.startswith("data: ") for event in sent)
    return [event if (event := each.removeprefix("data: ")) == "[DONE]" else json.loads(event) for each in sent]


def error(response: Any, status: int, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    body = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["param"] == param
    return str(body["message"])


def test_a_completion_has_the_form_of_the_api(client: TestClient) -> None:
    made = client.post(PATH, json={"model": "scripted", "prompt": "the old mill", "max_tokens": 20}).json()
    assert made.pop("id").startswith("cmpl-")
    assert made.pop("created") > 0
    assert made == {
        "object": "text_completion",
        "model": "scripted",
        "system_fingerprint": "COMMIT",
        "choices": [
            {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "giaann": {"stop": "no candidates"}}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11},
    }


def test_a_stream_has_the_content_of_the_whole_response(client: TestClient) -> None:
    asked = {"prompt": ["the mill", "a baker"], "echo": True, "stop": "sun", "candidates": 2, "columns": 1}
    whole = client.post(PATH, json=asked).json()
    streamed = client.post(PATH, json={**asked, "stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *chunks, last, done = events(streamed.text)
    assert done == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert len(parts) > 5, "tokens come one by one"
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [t for part in parts for t in part["giaann"]["tokens"]] == choice["giaann"]["tokens"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "param"), [("bad", 400, "prompt"), ("lost", 503, None), (["a mill", "bad"], 400, "prompt")]
)
def test_errors_of_the_engine_before_the_first_token(
    client: TestClient, prompt: object, status: int, param: str | None, stream: bool
) -> None:
    assert "expected" in error(client.post(PATH, json={"prompt": prompt, "stream": stream}), status, param)


def test_errors_in_the_middle(client: TestClient) -> None:
    assert "no worker" in error(client.post(PATH, json={"prompt": "breaks"}), 503)
    *chunks, last = events(client.post(PATH, json={"prompt": "breaks", "stream": True}).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " to the"
    assert "no worker" in last["error"]["message"]
    message = error(client.post(PATH, json={"prompt": "defect"}), 500)
    assert "private detail" not in message
    assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200, "the slot is free again"


def test_invalid_requests_have_their_status(client: TestClient) -> None:
    assert "'n'" in error(client.post(PATH, json={"prompt": "a", "n": 2}), 400, "n")
    assert "candidates" in error(client.post(PATH, json={"prompt": "a", "logprobs": 3}), 400, "logprobs")
    assert "scripted" in error(client.post(PATH, json={"prompt": "a", "model": "gpt"}), 404, "model")
    error(client.post(PATH, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    error(client.get(PATH), 405)
    # What clients call where they are set up for another interface, or without /v1.
    for path in ("/nowhere", "/v1/responses", "/chat/completions"):
        assert "completions are POST /v1/completions and /v1/chat" in error(client.post(path, json={}), 404)
    error(client.get("/../../etc/passwd"), 404)
    error(client.get("/v1/models/other"), 404, "model")


@pytest.mark.parametrize("number", [0xD83D, 0xDCFF])
def test_halves_of_surrogate_pairs_are_refused_in_every_field(client: TestClient, number: int) -> None:
    """JSON can name them, and no response in UTF-8 can contain them."""
    half = chr(number)
    for wrong, status in (
        ({half: 1}, 400),
        ({f"a{half}b": {half: [half]}}, 400),
        ({"prompt": half}, 400),
        ({"prompt": ["a mill", f"a {half}"]}, 400),
        ({"stop": half}, 400),
        ({"model": half}, 404),
        ({"max_tokens": half}, 400),
        ({"stream": True, "stream_options": {half: True}}, 400),
    ):
        response = client.post(PATH, content=json.dumps({"prompt": "a mill", **wrong}), headers=JSON)
        assert response.status_code == status, (wrong, response.text)
        assert "expected" in response.json()["error"]["message"]


def test_models_health_and_metrics(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["commit"]) == ("scripted", "model", "COMMIT")
    assert client.get("/v1/models/scripted").json() == model
    counts = {"running": 0, "waiting": 0}
    assert client.get("/healthz").json() == {"status": "ok", **counts}
    client.post(PATH, json={"prompt": "the mill"})
    client.get("/no/such/path")
    # A prompt leaves the batch after its last token was sent.
    until(lambda: "giaann_running 0.0" in client.get("/metrics").text.splitlines())
    shown = client.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    for line in (
        'giaann_network_info{commit="COMMIT",model="scripted"} 1.0',
        'giaann_requests_total{path="/v1/completions",status="200"} 1.0',
        'giaann_requests_total{path="other",status="404"} 1.0',
        "giaann_tokens_total 8.0",
        "giaann_prompt_tokens_total 2.0",
        "giaann_running 0.0",
        "giaann_waiting 0.0",
        "giaann_prompt_seconds_count 1.0",
        "giaann_first_token_seconds_count 1.0",
    ):
        assert line in shown.text.splitlines()


def test_health_check_gives_the_reason_and_is_shared(engine: ScriptedEngine, client: TestClient) -> None:
    """Simultaneous requests share one check, and the next request checks again."""
    engine.network.reason = "the connection to the cluster is lost"
    engine.network.checking.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.get, "/healthz") for _ in range(4)]
        until(lambda: engine.network.checks == 1)
        assert not any(each.done() for each in asked)
        engine.network.checking.set()
        answers = [each.result(30) for each in asked]
    assert {answer.status_code for answer in answers} == {503}
    assert answers[0].json() == {"status": "unavailable", "reason": engine.network.reason, "running": 0, "waiting": 0}
    engine.network.reason = None
    assert client.get("/healthz").status_code == 200


def test_bodies_are_bounded(engine: ScriptedEngine) -> None:
    with serving(engine, limits=Limits(body_bytes=1000)) as client:
        response = client.post(PATH, json={"prompt": "x" * 2000})
        assert "1000 bytes" in error(response, 413)
        assert response.headers["connection"] == "close"


def test_requests_need_the_api_key(engine: ScriptedEngine) -> None:
    with serving(engine, api_key="right") as client:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "right"},
            {"Authorization": "Bearer é"},
        ):
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            for path in ("/v1/models", "/metrics", "/v1/completions", "/nowhere"):
                response = client.get(path, headers=sent)
                assert "Bearer KEY" in error(response, 401)
                assert "right" not in response.text
                assert response.headers["www-authenticate"] == "Bearer"
        for given in ("Bearer right", "bearer right", "BEARER  right"):
            assert client.get("/v1/models", headers={"Authorization": given}).status_code == 200
        for given in ("Basic right", "Bearer", "right Bearer", "Bearerright", "Bearer right x"):
            error(client.get("/v1/models/", headers={"Authorization": given}), 401)
        assert client.get("/healthz").status_code == 200
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/net", "/healthz", "/metrics", "/page.js"])
def test_a_slash_at_the_end_of_a_path_changes_nothing(client: TestClient, path: str) -> None:
    found, other = client.get(path), client.get(f"{path}/")
    assert (other.status_code, other.headers["content-type"]) == (found.status_code, found.headers["content-type"])
    assert path == "/metrics" or other.content == found.content
    assert client.post(f"{PATH}/", json={"prompt": "the mill"}).status_code == 200
    assert client.get("//").status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity"])
def test_compressed_bodies_are_refused_as_such(client: TestClient, coding: str) -> None:
    body = gzip.compress(b'{"prompt": "the mill"}')
    response = client.post(PATH, content=body, headers={**JSON, "Content-Encoding": coding})
    assert "uncompressed" in error(response, 415)
    assert response.headers["accept-encoding"] == "identity"
    plain = {**JSON, "Content-Encoding": "Identity"}
    assert client.post(PATH, content=b'{"prompt": "the mill"}', headers=plain).status_code == 200


def test_events_have_no_line_ends_of_any_kind(client: TestClient) -> None:
    prompt = "the " + "".join(map(chr, (0x85, 0x2028, 0x2029, 0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x0D, 0x0A))) + " mill"
    streamed = client.post(PATH, json={"prompt": prompt, "echo": True, "stream": True}).content.decode("utf-8")
    lines = [line for line in streamed.splitlines() if line]
    assert streamed.count("\n\n") == len(lines)
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["text"] == prompt


def test_no_response_depends_on_the_host_header(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the host ``a/healthz?``, whose address has another path than was asked for, or ``[``, which has none."""
    monkeypatch.setattr(Request, "url", property(lambda http: 1 / 0))
    with serving(engine, api_key="right") as client:
        client.follow_redirects = False
        for host in (b"[", b"]", b"a/healthz?", b"a/healthz#", b"\xff", b"", b"@", b"a:99999999"):
            for path in ("/v1/models", "/metrics", "/nowhere", "/healthz/x", "/v1/models/%ff"):
                error(client.get(path, headers={"Host": host}), 401)
                known = client.get(path, headers={"Host": host, "Authorization": "Bearer right"})
                assert known.status_code == (200 if path in ("/v1/models", "/metrics") else 404)
            assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("depth", [10, 300, 900, 1000, 5000, 100_000])
@pytest.mark.parametrize("field", ["prompt", "stop", "model", "n", "logit_bias", "stream_options", "other", "user"])
def test_deeply_nested_values_are_refused(client: TestClient, field: str, depth: int) -> None:
    for left, right in (("[", "]"), ('{"a":', "}")):
        fields = {"prompt": '"the mill"', field: left * depth + "1" + right * depth}
        body = "{" + ",".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
        response = client.post(PATH, content=body, headers=JSON)
        assert response.status_code == 400 or (field == "user" and response.status_code == 200)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt": "the mill", "prompt": 5}', 400),
        (b'{"prompt": 5, "prompt": "the mill"}', 200),
        ('{"prompt": "the mill"}'.encode("utf-16"), 200),
        (b'\xef\xbb\xbf{"prompt": "the mill"}', 200),
        (b'{"prompt": "\xff"}', 400),
        (b"\xff\xfe{", 400),
        (b'{"prompt": "the mill", "max_tokens": ' + b"9" * 4000 + b"}", 200),
        (b'{"prompt": "the mill", "max_tokens": ' + b"9" * 5000 + b"}", 400),
        (b'{"prompt": "the mill", "temperature": 1e999}', 400),
        (b'{"prompt": "the mill", "temperature": NaN}', 400),
        (b'{"prompt": "the mill", "top_p": [1]}', 400),
        (b'{"prompt": "the mill", "logit_bias": [[]]}', 400),
        (b'{"": 1}', 400),
    ],
)
def test_bodies_of_any_kind_have_their_status(client: TestClient, body: bytes, status: int) -> None:
    assert client.post(PATH, content=body, headers=JSON).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil.example", 403),
        ("[::1].evil.example:80", 403),
    ],
)
def test_without_a_key_other_host_names_are_refused(client: TestClient, host: str, status: int) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == status


def test_a_full_queue_responds_429_with_retry_after(engine: ScriptedEngine) -> None:
    queue = QueueOptions(slots=2, waiting=1, wait_s=60)
    with serving(engine, queue=queue) as client, ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(client.post, PATH, json=SLOW) for _ in range(3)]
        for _ in range(2):
            assert engine.network.begun.acquire(timeout=30)
        until(lambda: client.get("/healthz").json() == {"status": "ok", "running": 2, "waiting": 1})
        for asked in (SLOW, {"prompt": ["a", "b"]}, {**SLOW, "stream": True}):
            response = client.post(PATH, json=asked)
            assert "retry later" in error(response, 429)
            assert response.json()["error"]["type"] == "rate_limit_error"
            assert 1 <= int(response.headers["retry-after"]) <= 60
        engine.network.released.set()
        assert [each.result(30).status_code for each in slow] == [200] * 3
        assert engine.network.most_at_once == 2
        assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200


def test_all_prompts_of_a_request_are_admitted_or_none(engine: ScriptedEngine) -> None:
    with serving(engine, queue=QueueOptions(slots=1, waiting=2)) as client:
        assert "at most 3" in error(client.post(PATH, json={"prompt": ["a mill"] * 4}), 400, "prompt")
        assert len(client.post(PATH, json={"prompt": ["a mill"] * 3}).json()["choices"]) == 3


def test_a_prompt_waits_for_a_bounded_time(engine: ScriptedEngine) -> None:
    queue = QueueOptions(slots=1, waiting=1, wait_s=0.05)
    with serving(engine, queue=queue) as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, PATH, json=SLOW)
        assert engine.network.begun.acquire(timeout=30)
        assert "0.05 seconds" in error(client.post(PATH, json=SLOW), 429)
        engine.network.released.set()
        assert slow.result(30).status_code == 200


def test_prompts_that_wait_for_others_of_their_request_wait_as_long_as_it_may_take(engine: ScriptedEngine) -> None:
    queue = QueueOptions(slots=1, waiting=30, wait_s=0.05)
    with serving(engine, queue=queue) as client, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(client.post, PATH, json={"prompt": ["slow mill", *["a mill"] * 19]})
        assert engine.network.begun.acquire(timeout=30)
        assert "0.05 seconds" in error(client.post(PATH, json=SLOW), 429)
        engine.network.released.set()
        assert [choice["text"] for choice in batch.result(30).json()["choices"]] == [TEXT] * 20


def test_a_response_with_fewer_tokens_than_requested_says_so(engine: ScriptedEngine) -> None:
    with serving(engine, limits=Limits(tokens=2, prompts=1)) as client:
        asked = {"prompt": "the mill", "max_tokens": 4096}
        response = client.post(PATH, json=asked)
        assert "max_tokens is 2" in response.headers["warning"]
        whole = response.json()
        assert (whole["max_tokens"], whole["choices"][0]["text"]) == (2, " to the")
        streamed = client.post(PATH, json={**asked, "stream": True})
        assert {event["max_tokens"] for event in events(streamed.text)[:-1]} == {2}
        assert "max_tokens" not in client.post(PATH, json={**asked, "max_tokens": 2}).json()
        assert "at most 1" in error(client.post(PATH, json={"prompt": ["a", "b"]}), 400, "prompt")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_exceeds_its_timeout_is_cancelled(engine: ScriptedEngine, stream: bool) -> None:
    with serving(engine, timeout_s=0.1, queue=QueueOptions(slots=1)) as client:
        response = client.post(PATH, json={**SLOW, "stream": stream})
        if stream:
            (last,) = events(response.text)
            assert "0.1 seconds" in last["error"]["message"]
        else:
            assert "0.1 seconds" in error(response, 504)
        assert engine.network.ended.acquire(timeout=30), "its generation, too"
        assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_a_client_that_disconnects_cancels_its_generation(engine: ScriptedEngine, stream: bool, running: bool) -> None:
    """Calls the application as a server does, where a disconnect can be sent."""
    app = build_app(models_of(engine), ServingOptions(queue=QueueOptions(slots=1)))
    body = json.dumps({**SLOW, "stream": stream}).encode()

    async def ask(gone: asyncio.Event) -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            pass

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b""}
        await app(scope, receive, send)

    async def ask_and_go() -> None:
        async with app.router.lifespan_context(app):
            stays, goes = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(ask(goes if running else stays))
            assert await asyncio.to_thread(engine.network.begun.acquire, timeout=30)
            second = None if running else asyncio.create_task(ask(goes))
            await asyncio.sleep(0.02)
            goes.set()
            await asyncio.wait_for(first if second is None else second, 30)
            if running:
                assert await asyncio.to_thread(engine.network.ended.acquire, timeout=30)
            else:
                engine.network.released.set()
                await asyncio.wait_for(first, 30)
                assert not engine.network.begun.acquire(blocking=False), "the second was never begun"

    asyncio.run(ask_and_go())


@pytest.mark.parametrize("columns", [0, 1])
def test_closing_ends_running_generations_and_all_threads(columns: int) -> None:
    before = threading.active_count()
    engine, options = ScriptedEngine(), ServingOptions(timeout_s=0.05, queue=QueueOptions(slots=3))
    with closing(models_of(engine)) as models, TestClient(build_app(models, options), "http://127.0.0.1") as client:
        client.post(PATH, json={**SLOW, "columns": columns})
    assert engine.network.ended.acquire(timeout=30)
    engine.close()
    until(lambda: threading.active_count() <= before)


def test_a_defect_of_the_batch_fails_running_requests_and_the_health_check(engine: ScriptedEngine) -> None:
    """The thread that steps the batch stops, because a failed step cannot even be cleared away."""
    with serving(engine) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, PATH, json=SLOW)
        assert engine.network.begun.acquire(timeout=30)
        error(client.post(PATH, json={"prompt": "stuck defect"}), 500)
        error(running.result(30), 500)
        assert "stopped because of a bug" in error(client.post(PATH, json={"prompt": "the mill"}), 500)
        health = client.get("/healthz")
        assert health.status_code == 503
        assert "stopped because of a bug" in health.json()["reason"]
        assert health.json()["running"] == 0
    assert engine.failure() is not None


def test_a_prompt_that_cannot_enter_fails_alone(engine: ScriptedEngine) -> None:
    with serving(engine) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, PATH, json=SLOW)
        assert engine.network.begun.acquire(timeout=30)
        assert "refused" in error(client.post(PATH, json={"prompt": "refused"}), 400, "prompt")
        engine.network.released.set()
        assert running.result(30).status_code == 200


def test_the_page_loads_only_its_own_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert name == "data:," or client.get(name).status_code == 200
    assert not re.findall(r"https?://", page.text + client.get("/page.js").text + client.get("/page.css").text)


def until(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("timeout")
