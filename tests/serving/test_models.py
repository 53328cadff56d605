"""Several networks in one server: named by requests, opened on demand, and closed by use within a byte budget."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from weakref import WeakValueDictionary

import pytest
from starlette.testclient import TestClient
from support.processes import until
from support.serving_engines import ScriptedEngine

from giaann_dask.errors import ClusterError, OptionError
from giaann_dask.serving.app import build_app
from giaann_dask.serving.engine import CompletionEngine
from giaann_dask.serving.models import Models, ModelSource
from giaann_dask.serving.server import address_of, bind, serve
from giaann_dask.serving.serving_options import QueueOptions, ServingOptions


class Networks:
    """Scripted networks ``a``, ``b`` and ``c`` of 10 bytes each, and what was opened and closed, in order."""

    def __init__(self, budget: int | None = None) -> None:
        self.events: list[str] = []
        self.engines: WeakValueDictionary[str, ScriptedEngine] = WeakValueDictionary()
        self.models = Models([self.source(name) for name in "abc"], budget=budget)

    def source(self, name: str) -> ModelSource:
        @contextmanager
        def opening() -> Iterator[CompletionEngine]:
            with closing(ScriptedEngine()) as engine:
                self.events.append(f"+{name}")
                self.engines[name] = engine
                yield engine
            self.events.append(f"-{name}")

        fields = {"commit": f"COMMIT {name}", "profile": "v1", "nbytes": 10}
        fields |= {"has_probabilities": False, "subwords": False}
        return ModelSource(name=name, opening=opening, **fields)


@contextmanager
def served(networks: Networks) -> Iterator[TestClient]:
    options = ServingOptions(queue=QueueOptions(wait_s=0.2))
    networks.models.open_default()
    with closing(networks.models), TestClient(build_app(networks.models, options), "http://127.0.0.1") as http:
        yield http


def complete(http: TestClient, model: str | None, prompt: str = "the mill") -> Any:
    return http.post("/v1/completions", json={"prompt": prompt, **({} if model is None else {"model": model})})


def test_networks_are_opened_on_demand_and_closed_by_use() -> None:
    networks = Networks(budget=20)
    with served(networks) as http:
        for model in (None, "b", "a", "c", "c", "b"):
            answer = complete(http, model)
            assert (answer.status_code, answer.json()["model"]) == (200, model or "a")
            assert answer.json()["choices"][0]["text"].split()[0] == "to"
        assert networks.events == ["+a", "+b", "-b", "+c", "-a", "+b"]
        listed = http.get("/v1/models").json()["data"]
        assert [(each["id"], each["commit"], each["open"]) for each in listed] == [
            ("a", "COMMIT a", False),
            ("b", "COMMIT b", True),
            ("c", "COMMIT c", True),
        ]
        metrics = http.get("/metrics").text
        assert "giaann_open_networks 2.0" in metrics
        assert "giaann_open_bytes 20.0" in metrics
        assert "giaann_open_seconds_count 3.0" in metrics
        assert set(networks.engines) == {"b", "c"}, "what was closed is not in memory"
        # Steps of engines that were closed still count.
        assert networks.models.statistics().steps["server"] >= 6 * 8
    assert sorted(networks.events[-2:]) == ["-b", "-c"]


def test_a_network_in_use_stays_open() -> None:
    networks = Networks(budget=10)
    with served(networks) as http:
        asked = threading.Thread(target=complete, args=(http, "a", "the slow mill"))
        asked.start()
        assert networks.engines["a"].network.begun.acquire(timeout=20)
        refused = complete(http, "b")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "other networks are in use" in refused.json()["error"]["message"]
        networks.engines["a"].network.released.set()
        asked.join(20)
        assert complete(http, "b").status_code == 200
    assert networks.events == ["+a", "-a", "+b", "-b"]


def test_models_that_are_not_there() -> None:
    with served(Networks()) as http:
        for answer in (complete(http, "d"), http.get("/v1/models/d")):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (
                404,
                "model_not_found",
                "invalid_request_error",
            )
            assert "expected 'a', 'b', 'c'" in error["message"]
        assert http.get("/v1/models/b").json()["id"] == "b"
    with pytest.raises(OptionError, match="same name in a, a"):
        Models([networks.source("a") for networks in [Networks()] * 2])


def test_an_opening_that_fails_is_tried_again() -> None:
    networks = Networks()
    with served(networks) as http:
        source = networks.models["b"].source

        @contextmanager
        def failing() -> Iterator[CompletionEngine]:
            raise ClusterError("no worker answers", "workers")
            yield

        networks.models["b"].source = ModelSource(**{**vars(source), "opening": failing})
        assert complete(http, "b").status_code == 503
        networks.models["b"].source = source
        assert complete(http, "b").status_code == 200


def test_the_server_does_not_wait_for_a_network_that_is_being_opened() -> None:
    networks, begun, released = Networks(), threading.Event(), threading.Event()
    late = networks.models["b"]
    late.close_s = 0.05
    source = late.source

    @contextmanager
    def slow() -> Iterator[CompletionEngine]:
        begun.set()
        released.wait(60)
        with source.opening() as engine:
            yield engine

    late.source = replace(source, opening=slow)
    codes: list[int] = []
    options, stop, ready = (
        ServingOptions(port=0, drain_s=1, queue=QueueOptions(wait_s=0.2)),
        threading.Event(),
        threading.Event(),
    )
    bound = bind(options)
    networks.models.open_default()
    app = build_app(networks.models, options)

    def run() -> None:
        serve(app, bound, options, stop=stop, ready=ready.set)
        networks.models.close()

    server = threading.Thread(target=run, daemon=True)
    server.start()
    body = json.dumps({"model": "b", "prompt": "the mill"}).encode()
    request = Request(f"{address_of(bound)}/v1/completions", body, {"Content-Type": "application/json"})

    def ask() -> None:
        try:
            urlopen(request, timeout=100)
        except HTTPError as error:
            codes.append(error.code)

    try:
        assert ready.wait(60)
        threading.Thread(target=ask, daemon=True).start()
        assert begun.wait(60)
        stop.set()
        server.join(30)
        assert not server.is_alive()
    finally:
        stop.set()
        released.set()
    until(lambda: codes == [503] and networks.events == ["+a", "-a", "+b", "-b"])
