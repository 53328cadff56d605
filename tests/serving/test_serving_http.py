"""The server's answers over HTTP, with a scripted engine and in this process."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from support.serving_engines import ScriptedEngine

from giaann_dask.serving.app import build_app
from giaann_dask.serving.options import Limits, QueueOptions, ServingOptions

PATH = "/v1/completions"
TEXT = " to the baker before the sun rise and home"
SLOW = {"prompt": "slow mill"}
JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(engine: ScriptedEngine, **options: Any) -> Iterator[TestClient]:
    app = build_app(engine, ServingOptions(**options))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.released.set()


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
        "choices": [
            {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "giaann": {"stop": "no candidates"}}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11},
    }


def test_a_stream_says_the_same_as_the_whole(client: TestClient) -> None:
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
    assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200, "the place is free again"


def test_what_is_no_completion(client: TestClient) -> None:
    assert "'n'" in error(client.post(PATH, json={"prompt": "a", "n": 2}), 400, "n")
    assert "candidates" in error(client.post(PATH, json={"prompt": "a", "logprobs": 3}), 400, "logprobs")
    assert "scripted" in error(client.post(PATH, json={"prompt": "a", "model": "gpt"}), 404, "model")
    error(client.post(PATH, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    error(client.get(PATH), 405)
    error(client.get("/nowhere"), 404)
    error(client.get("/../../etc/passwd"), 404)
    error(client.get("/v1/models/other"), 404)


@pytest.mark.parametrize("number", [0xD83D, 0xDCFF])
def test_halves_of_surrogate_pairs_are_refused_wherever_they_are(client: TestClient, number: int) -> None:
    """JSON can name them, and no answer in UTF-8 can hold them."""
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


def test_health_says_why_prompts_cannot_be_continued(engine: ScriptedEngine, client: TestClient) -> None:
    """Those who ask meanwhile share one look, and the next one looks anew."""
    engine.reason = "the connection to the cluster is lost"
    engine.looking.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.get, "/healthz") for _ in range(4)]
        until(lambda: engine.looks == 1)
        assert not any(each.done() for each in asked)
        engine.looking.set()
        answers = [each.result(30) for each in asked]
    assert {answer.status_code for answer in answers} == {503}
    assert answers[0].json() == {"status": "unavailable", "reason": engine.reason, "running": 0, "waiting": 0}
    engine.reason = None
    assert client.get("/healthz").status_code == 200


def test_bodies_are_bounded(engine: ScriptedEngine) -> None:
    with serving(engine, limits=Limits(body_bytes=1000)) as client:
        response = client.post(PATH, json={"prompt": "x" * 2000})
        assert "1000 bytes" in error(response, 413)
        assert response.headers["connection"] == "close"


def test_the_key(engine: ScriptedEngine) -> None:
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
        assert client.get("/v1/models", headers={"Authorization": "Bearer right"}).status_code == 200
        assert client.get("/healthz").status_code == 200
        assert client.get("/").status_code == 200


def test_no_answer_depends_on_an_address_made_of_the_host_header(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the host ``a/healthz?``, whose address has another path than was asked for, or ``[``, which has none."""
    monkeypatch.setattr(Request, "url", property(lambda http: 1 / 0))
    with serving(engine, api_key="right") as client:
        client.follow_redirects = False
        for host in (b"[", b"]", b"a/healthz?", b"a/healthz#", b"\xff", b"", b"@", b"a:99999999"):
            for path in ("/v1/models", "/metrics", "/nowhere", "/healthz/", "/v1/models/%ff"):
                error(client.get(path, headers={"Host": host}), 401)
                known = client.get(path, headers={"Host": host, "Authorization": "Bearer right"})
                assert known.status_code == (200 if path in ("/v1/models", "/metrics") else 404)
            assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("depth", [10, 300, 900, 1000, 5000, 100_000])
@pytest.mark.parametrize("field", ["prompt", "stop", "model", "n", "logit_bias", "stream_options", "other", "user"])
def test_deep_values_are_no_defect(client: TestClient, field: str, depth: int) -> None:
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
        (b'{"prompt": "the mill", "max_tokens": ' + b"9" * 4000 + b"}", 400),
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
    ],
)
def test_without_a_key_other_names_are_refused(client: TestClient, host: str, status: int) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == status


def test_too_many_are_refused_at_once_and_told_when_to_come_back(engine: ScriptedEngine) -> None:
    line = QueueOptions(places=2, waiting=1, wait_s=60)
    with serving(engine, line=line) as client, ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(client.post, PATH, json=SLOW) for _ in range(3)]
        for _ in range(2):
            assert engine.begun.acquire(timeout=30)
        until(lambda: client.get("/healthz").json() == {"status": "ok", "running": 2, "waiting": 1})
        for asked in (SLOW, {"prompt": ["a", "b"]}, {**SLOW, "stream": True}):
            response = client.post(PATH, json=asked)
            assert "again later" in error(response, 429)
            assert response.json()["error"]["type"] == "rate_limit_error"
            assert 1 <= int(response.headers["retry-after"]) <= 60
        engine.released.set()
        assert [each.result(30).status_code for each in slow] == [200] * 3
        assert engine.most_at_once == 2
        assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200


def test_all_prompts_of_a_request_come_in_or_none(engine: ScriptedEngine) -> None:
    with serving(engine, line=QueueOptions(places=1, waiting=2)) as client:
        error(client.post(PATH, json={"prompt": ["a mill"] * 4}), 429)
        assert len(client.post(PATH, json={"prompt": ["a mill"] * 3}).json()["choices"]) == 3


def test_nobody_waits_longer_than_said(engine: ScriptedEngine) -> None:
    line = QueueOptions(places=1, waiting=1, wait_s=0.05)
    with serving(engine, line=line) as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, PATH, json=SLOW)
        assert engine.begun.acquire(timeout=30)
        assert "0.05 seconds" in error(client.post(PATH, json=SLOW), 429)
        engine.released.set()
        assert slow.result(30).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(engine: ScriptedEngine, stream: bool) -> None:
    with serving(engine, timeout_s=0.1, line=QueueOptions(places=1)) as client:
        response = client.post(PATH, json={**SLOW, "stream": stream})
        if stream:
            (last,) = events(response.text)
            assert "0.1 seconds" in last["error"]["message"]
        else:
            assert "0.1 seconds" in error(response, 504)
        assert engine.ended.acquire(timeout=30), "and so is its generation"
        assert client.post(PATH, json={"prompt": "the mill"}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_a_client_that_goes_away_ends_its_generation(engine: ScriptedEngine, stream: bool, running: bool) -> None:
    """Spoken to as a server speaks to an application, where it can be told when the client goes."""
    app = build_app(engine, ServingOptions(line=QueueOptions(places=1)))
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
            assert await asyncio.to_thread(engine.begun.acquire, timeout=30)
            second = None if running else asyncio.create_task(ask(goes))
            await asyncio.sleep(0.02)
            goes.set()
            await asyncio.wait_for(first if second is None else second, 30)
            if running:
                assert await asyncio.to_thread(engine.ended.acquire, timeout=30)
            else:
                engine.released.set()
                await asyncio.wait_for(first, 30)
                assert not engine.begun.acquire(blocking=False), "who waited and went was never begun"

    asyncio.run(ask_and_go())


def test_leaving_ends_what_is_under_way(engine: ScriptedEngine) -> None:
    before = threading.active_count()
    with serving(engine, timeout_s=0.05, line=QueueOptions(places=3)) as client:
        client.post(PATH, json=SLOW)
    assert engine.ended.acquire(timeout=30)
    until(lambda: threading.active_count() <= before)


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
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
    raise AssertionError("this has not come about")
