"""A server in the background of this process, asked as any client would."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest
from distributed import Client, LocalCluster
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import OptionError

LANTERN = "The captain hung the lantern on the old ship."
PROMPT = "The captain hung the"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    folder = tmp_path_factory.mktemp("served")
    with gd.connect(workers=0) as client:
        text = write_village(folder / "text.txt", 60, 1)
        return gd.train(text, folder / "net", client=client, profile="contexts", trace=True)


def test_a_notebook_serves_learns_traces_and_forgets(network: gd.Network) -> None:
    before = network.digest()
    threads = threading.active_count()
    with gd.serve(network, writable=True, port=0, drain_s=5) as server:
        assert server.write_key is not None
        assert f"write key  {server.write_key}" in repr(server)
        with httpx2.Client(base_url=server.url, timeout=60) as http:
            key = {"Authorization": f"Bearer {server.write_key}"}
            query = {"prompt": PROMPT, "max_tokens": 1}

            def told() -> tuple[str, list[str]]:
                (token,) = http.get("/v1/trace", params=query).json()["choices"][0]["giaann"]["tokens"]
                return token["text"], token["documents"]

            first, documents = told()
            assert documents == []
            ship = "/v1/documents/ship"
            assert http.post("/v1/documents", json={"id": "ship", "text": LANTERN}).status_code == 401
            added = http.post("/v1/documents", json={"id": "ship", "text": LANTERN}, headers=key)
            assert added.status_code == 201, added.text
            assert told() == ("lantern", ["ship"])
            completed = http.post("/v1/completions", json=query).json()
            assert completed["choices"][0]["text"] == " lantern"
            assert http.get("/v1/models").json()["data"][0]["writable"] is True
            wrong = http.get("/v1/trace", params={**query, "max_tokens": "many"}).json()["error"]
            assert (wrong["param"], wrong["code"]) == ("max_tokens", "invalid_value")
            assert http.delete(ship, headers=key).json()["certificate"]["commit"] == gd.open(network.path).commit
            assert told() == (first, [])
        openai = pytest.importorskip("openai", reason="needs openai (extra dev)")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="net", prompt=PROMPT, max_tokens=1)
        assert answer.choices[0].text.strip() == first
    assert gd.open(network.path).digest() == before
    assert repr(server).startswith("Server, closed")
    server.close()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/healthz")
    assert threading.active_count() <= threads + 2, "of Dask's event loop"


def test_a_network_without_an_index_says_so_and_an_address_that_is_taken_too(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        plain = gd.train([LANTERN], tmp_path / "plain", client=client, profile="contexts")
    with gd.serve(plain, port=0) as server:
        assert (server.write_key, "key" in repr(server)) == (None, False)
        error = httpx2.get(f"{server.url}/v1/trace", params={"prompt": PROMPT}, timeout=60).json()["error"]
        assert error["code"] == "not_traced"
        assert "giaann-dask index" in error["message"]
        with pytest.raises(OptionError, match="free port"):
            gd.serve(plain, port=int(server.url.rpartition(":")[2]))


def test_a_program_that_forgets_to_close_its_server_ends(network: gd.Network) -> None:
    program = f"import giaann_dask as gd; print(gd.serve({str(network.path)!r}, port=0).url)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("http://127.0.0.1:")


def test_a_cluster_with_certificates_serves_with_those_of_its_client(network: gd.Network) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    options = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with (
        LocalCluster(protocol="tls", security=True, **options) as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,
        gd.serve(network, client=client, port=0, drain_s=5) as server,
    ):
        assert str(client.scheduler.address).startswith("tls://")
        answer = httpx2.post(f"{server.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, timeout=60)
        assert answer.status_code == 200, answer.text
