"""A server that learns and forgets documents: each change is an exact commit that prompts see at once."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import dask
import httpx2
import pytest
from dask.utils import key_split
from distributed import Client, get_task_stream
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from support.examples import scaled
from support.processes import Process, until
from support.serving_engines import Collected
from support.village import write_village

import giaann_dask as gd
from giaann_dask.algebra.removal import PreparedCommit
from giaann_dask.cli import run
from giaann_dask.errors import OptionError, StoreWriteError
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.serving import completions, documents
from giaann_dask.serving.document_bodies import NewDocument
from giaann_dask.serving.documents import Document, DocumentHandlers, DocumentTable, DocumentWriter
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.models import EngineOpener, Models, ModelSource, SharedClient, open_engine
from giaann_dask.serving.network_server import Server
from giaann_dask.serving.request_queue import RequestQueue
from giaann_dask.serving.serving_options import Limits, QueueOptions, ServingOptions
from giaann_dask.store.beside import DOCUMENTS
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ledger import IDENTITY_BYTES

WRITE = {"Authorization": "Bearer writer"}
LANTERN = "The fisherman sold a lantern to the captain. The captain hung the lantern on the old ship."
COIN = "The young baker found a silver coin in the river. The miller bought the coin from the baker."
PATH = "/v1/documents"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with gd.connect(workers=0) as client:
        text = write_village(folder / "text.txt", 60, 1)
        gd.train(text, folder / "net", client=client, profile="contexts", regions=2, trace=True)
    return folder


class KeptClient(SharedClient):
    """Client that servers after each other use."""

    def close(self) -> None:
        """Stay open."""


@pytest.fixture(scope="module")
def clients() -> Iterator[SharedClient]:
    kept = KeptClient(lambda: gd.connect(workers=0))
    yield kept
    SharedClient.close(kept)


@pytest.fixture
def network(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "net", tmp_path / "net"))


@contextmanager
def serving(network: Path, clients: SharedClient, **options: Any) -> Iterator[tuple[TestClient, Models]]:
    opener = EngineOpener(clients=clients, generation=GenerationOptions(), batch=BatchOptions(slots=2), workers=0)
    chosen = ServingOptions(writable=True, write_key="writer", port=0, **options)
    with Server([(None, network)], opener, chosen) as server:
        server.open()
        with TestClient(server.app(), "http://127.0.0.1", raise_server_exceptions=False) as http:
            yield http, server.models


@pytest.mark.parametrize("name", [".", "..", "", "a/b"])
def test_an_id_can_be_written_in_an_address(name: str, network: Path, clients: SharedClient) -> None:
    before = gd.open(network).commit
    with serving(network, clients) as (http, _):
        for given in ({"json": {"id": name, "text": COIN}}, {"params": {"id": name}, "content": COIN}):
            kind = {} if "json" in given else {"Content-Type": "text/plain"}
            refused = http.post(PATH, **given, headers={**WRITE, **kind})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "id")
    assert gd.open(network).commit == before


def test_a_document_is_learned_traced_and_forgotten(network: Path, clients: SharedClient) -> None:
    before = gd.open(network).digest()
    asked: dict[str, Any] = {"prompt": "the captain hung the", "max_tokens": 1, "connections": 20}
    with serving(network, clients) as (http, models):
        first = http.post("/v1/completions", json=asked).json()["choices"][0]["text"]
        assert first.strip() != "lantern"
        added = http.post(PATH, json={"id": "ship", "text": LANTERN, "metadata": {"year": 1851}}, headers=WRITE)
        assert added.status_code == 201, added.text
        assert added.json()["metadata"] == {"year": 1851}
        assert models.default.commit == gd.open(network).commit
        choice = http.post("/v1/completions", json=asked).json()["choices"][0]
        assert choice["text"].strip() == "lantern"
        connections = [each["connection"] for each in choice["giaann"]["tokens"][0]["connections"]]
        commit = {"commit": models.default.commit}
        found = http.post("/v1/sentences", json={"connections": connections[:1], **commit}).json()["data"]
        sentences = found[0]["sentences"]
        traced = http.get("/v1/trace", params=asked).json()
        (token,) = traced["choices"][0]["giaann"]["tokens"]
        assert (token["text"], token["documents"]) == ("lantern", ["ship"])
        assert traced["system_fingerprint"] == commit["commit"]
        assert next(each for each in token["connections"] if each["connection"] is not None)["sentences"] == sentences
        assert {"documents": ["ship"], "text": LANTERN.split(". ")[1].lower()[:-1]}.items() <= {
            "documents": sentences[0]["documents"],
            "text": (sentences[0]["text"] or "").lower().rstrip(" ."),
        }.items()
        stored = http.get(f"{PATH}/ship").json()
        assert (stored["text"], stored["metadata"]) == (LANTERN, {"year": 1851})
        assert zlib.compress(LANTERN.encode()) in network.with_name(network.name + DOCUMENTS).read_bytes()
        removed = http.request("DELETE", f"{PATH}/ship", headers=WRITE)
        certificate = removed.json()["certificate"]
        until(lambda: all(http.get(f"{PATH}/ship/certificate").json()[name] for name in ("digest", "digest_removed")))
        assert gd.open(network).digest() == before
        assert certificate["elsewhere"] == [], "not the file of the documents, which lose it"
        found = http.get(f"{PATH}/ship/certificate").json()
        assert found == {**certificate, "digest": before, "digest_removed": found["digest_removed"]}
        assert http.post("/v1/completions", json=asked).json()["choices"][0]["text"] == first
        late = http.post("/v1/sentences", json={"connections": connections[:1], **commit})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "changed"), "numbers of another commit"
        assert http.get(f"{PATH}/ship").status_code == 404
        assert http.request("DELETE", f"{PATH}/ship", headers=WRITE).status_code == 404
    assert zlib.compress(LANTERN.encode()) not in network.with_name(network.name + DOCUMENTS).read_bytes()


def test_small_documents_take_no_tasks_but_those_that_predictions_are_opened_by(tmp_path: Path) -> None:
    """They are counted, added up, subtracted and committed by the server's own process."""
    kept = KeptClient(lambda: gd.connect(workers=0))
    with kept.use() as client:
        text = write_village(tmp_path / "text.txt", 60, 1)
        network = Path(gd.train(text, tmp_path / "net", client=client, profile="v1", regions=2).path)
        with serving(network, kept) as (http, _), get_task_stream(client) as stream:
            assert http.post(PATH, json={"id": "ship", "text": LANTERN}, headers=WRITE).status_code == 201
            assert http.request("DELETE", f"{PATH}/ship", headers=WRITE).json()["certificate"]["digest"] == ""
    SharedClient.close(kept)
    assert {key_split(record["key"]) for record in stream.data} == {"open_run"}


def test_any_additions_and_removals_equal_one_training_on_what_is_left(
    network: Path, trained: Path, clients: SharedClient, tmp_path: Path
) -> None:
    draws, changes = Random(5), scaled(4)
    numbers = range(2 * changes + 5)
    texts = {f"d{number}": write_village(tmp_path / f"{number}.txt", 4, number).read_text() for number in numbers}
    left: set[str] = set()
    with serving(network, clients) as (http, _):
        for change in range(changes):
            new = sorted(draws.sample(sorted(texts.keys() - left), 2))
            lines = "\n".join(json.dumps({"id": name, "text": texts[name]}) for name in new)
            headers = {**WRITE, "Content-Type": "application/x-ndjson"}
            assert len(http.post(PATH, content=lines, headers=headers).json()["data"]) == 2
            left.update(new)
            gone = draws.choice(sorted(left))
            left.discard(gone)
            purge = change % 2 == 1
            asked = f"{PATH}/{gone}?purge={purge}"
            removed = http.request("DELETE", asked, headers=WRITE).json()["certificate"]
            assert removed.get("purge") == ("running" if purge else None)
            if purge:
                until(lambda name=gone: http.get(f"{PATH}/{name}/certificate").json()["purge"] == "done")
                assert removed["commit_before"] in http.get(f"{PATH}/{gone}/certificate").json()["purged"]
                assert len(gd.open(network).commits()) == 1
        assert [each["id"] for each in http.get(PATH).json()["data"]] == sorted(left)
        assert len(left) == changes
        limits = (changes - 1, changes)
        assert [http.get(f"{PATH}?limit={most}").json()["has_more"] for most in limits] == [True, False]
    shutil.copytree(trained / "net", tmp_path / "apart")
    with clients.use() as client:
        apart = gd.train([texts[name] for name in sorted(left)], tmp_path / "apart", client=client)
    assert gd.open(network).digest() == apart.digest()


def test_a_change_does_not_wait_while_the_commit_of_a_purge_is_computed(
    network: Path, clients: SharedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is then computed again, with the change."""
    renewed: list[int] = []
    prepared: list[str] = []
    priorities: list[int] = []
    prepare = documents.prepare_purge

    def prepare_purge(client: Client, store: NetworkStore) -> PreparedCommit:
        priorities.append(dask.get_annotations()["priority"])
        found = prepare(client, store)
        prepared.append(found.reader.commit)
        if len(prepared) == 1:
            # In the thread of the purge: it would wait for ever.
            writer.add([("late", COIN, {})])
        return found

    monkeypatch.setattr(documents, "prepare_purge", prepare_purge)
    writer = DocumentWriter(network, clients, lambda reader: renewed.append(reader.manifest().sequences))
    with closing(writer):
        (ship,) = writer.add([("ship", LANTERN, {})])
        writer.remove(ship, LANTERN, purge=True)
        until(lambda: (writer.certificate("ship") or {}).get("purge") == "done")
        assert writer.table.find("late") is not None
    added, removed, late, purged = renewed
    assert added > removed < late == purged
    assert len(set(prepared)) == len(prepared) == 2
    assert max(priorities) < 0, "tasks of changes and prompts run before"
    assert len(gd.open(network).commits()) == 1


def test_two_writers_make_their_changes_one_after_the_other(
    network: Path, trained: Path, clients: SharedClient, tmp_path: Path
) -> None:
    before = len(gd.open(network).commits())
    writer = DocumentWriter(network, clients, lambda reader: None)
    texts = {"ship": LANTERN, "coin": COIN}
    writers = [threading.Thread(target=writer.add, args=([(name, text, {})],)) for name, text in texts.items()]
    with closing(writer):
        with writer.turns.change():
            for each in writers:
                each.start()
            until(lambda: writer.turns.waiting == 2)
            assert len(gd.open(network).commits()) == before
        for each in writers:
            each.join(60)
        assert {each.id for each in writer.table.in_state("stored")} == texts.keys()
    assert len(gd.open(network).commits()) == before + 2
    shutil.copytree(trained / "net", tmp_path / "apart")
    with clients.use() as client:
        assert gd.open(network).digest() == gd.train([*texts.values()], tmp_path / "apart", client=client).digest()


def test_a_streamed_request_is_committed_while_it_is_received(network: Path, clients: SharedClient) -> None:
    """Of what was received, no more is held than the documents of a commit and a line."""
    limits = Limits(commit_bytes=3_000, documents=4)
    texts = {f"d{number:02}": f"{COIN} {LANTERN} The coin {number} was old." for number in range(30)}
    lines = "".join(json.dumps({"id": name, "text": text}) + "\n\n" for name, text in texts.items()).encode()
    longest = len(lines) // len(texts) + 10
    pieces = [lines[at : at + 100] for at in range(0, len(lines), 100)]
    received = committed = most = 0
    commits: list[int] = []

    async def receive() -> dict[str, Any]:
        nonlocal received, most
        received += len(pieces[0])
        most = max(most, received - committed)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def add(handlers: DocumentHandlers) -> Response:
        kind = (b"content-type", b"application/x-ndjson")
        scope = {"type": "http", "method": "POST", "headers": [kind], "query_string": b"stream=true"}
        return await handlers.add(Request(scope, receive))

    writer = DocumentWriter(network, clients, lambda reader: None)
    learn = writer.add

    def learned(given: Sequence[NewDocument]) -> list[Document]:
        nonlocal committed
        found = learn(given)
        committed += sum(len(json.dumps({"id": name, "text": text})) + 2 for name, text, _ in given)
        commits.append(len(given))
        return found

    with closing(writer):
        writer.add = learned  # type: ignore[method-assign]
        response = asyncio.run(add(DocumentHandlers(writer, limits, lambda: None)))
        assert {each.id for each in writer.table.in_state("stored")} == texts.keys()
    assert [each["id"] for each in json.loads(response.body)["data"]] == list(texts)
    assert max(commits) == 4
    assert len(commits) == 8
    assert most <= 4 * longest + longest + 100 < len(lines) / 4


def test_an_error_ends_a_streamed_request_and_what_was_committed_stays(network: Path, clients: SharedClient) -> None:
    asked, headers = f"{PATH}?stream=true", {**WRITE, "Content-Type": "application/x-ndjson"}

    def lines(*documents: Any) -> Iterator[bytes]:
        # By chunked transfer, as its length is not known.
        return (json.dumps(each).encode() + b"\n" for each in documents)

    ship, coin = {"id": "ship", "text": LANTERN}, {"id": "coin", "text": COIN}
    with serving(network, clients, limits=Limits(documents=1)) as (http, _):
        wrong = http.post(asked, content=lines(ship, coin, {"id": "none"}), headers=headers)
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "text"
        assert [each["id"] for each in wrong.json()["data"]] == ["ship"], "the other one was not committed yet"
        held = gd.open(network).commit
        again = http.post(asked, content=lines(ship, coin), headers=headers)
        assert (again.status_code, [each["id"] for each in again.json()["data"]]) == (201, ["ship", "coin"])
        assert len(gd.open(network).commits()) == 1 + [name for name, _ in gd.open(network).commits()].index(held) + 2
        assert http.post(asked, content=lines({**ship, "text": COIN}), headers=headers).status_code == 409
        assert http.post(asked, content=lines(), headers=headers).status_code == 400
        assert http.post(asked, json=ship, headers=WRITE).status_code == 415
        assert http.post(f"{PATH}?stream=3", content=lines(ship), headers=headers).status_code == 400


def test_what_is_wrong_changes_nothing(
    network: Path, clients: SharedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    before = gd.open(network).commit
    with serving(network, clients, api_key="reader") as (http, _):
        read = {"Authorization": "Bearer reader"}
        assert http.get(PATH).status_code == 401
        assert http.get(PATH, headers=read).status_code == http.get(PATH, headers=WRITE).status_code == 200
        for headers in ({}, read, {"Authorization": "Bearer wrong"}):
            assert http.post(PATH, json={"text": COIN}, headers=headers).status_code == 401
            assert http.request("DELETE", f"{PATH}/coin", headers=headers).status_code == 401
        wrong: tuple[tuple[int, Any], ...] = (
            (400, {}),
            (400, {"text": " "}),
            (400, {"text": 3}),
            (400, {"id": "a/b", "text": COIN}),
            (400, {"text": COIN, "metadata": 3}),
            (400, {"text": COIN, "more": 1}),
        )
        for status, body in wrong:
            answer = http.post(PATH, json=body, headers=WRITE)
            assert answer.status_code == status, answer.text
            assert "expected" in answer.json()["error"]["message"]
        assert http.post(PATH, content="x", headers={**WRITE, "Content-Type": "image/png"}).status_code == 415
        assert gd.open(network).commit == before
        assert http.get(PATH, headers=read).json()["data"] == []
    with pytest.raises(OptionError, match="key"):
        ServingOptions(writable=True, api_key="one", write_key="one")
    assert run(["serve", str(network), "--writable"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "GIAANN_WRITE_KEY" in said


def test_an_id_has_one_text_and_a_text_may_have_several_ids(network: Path, clients: SharedClient) -> None:
    with serving(network, clients, keep_texts=False) as (http, _):

        def add(name: str, text: str) -> Any:
            return http.post(f"{PATH}?id={name}", content=text, headers={**WRITE, "Content-Type": "text/plain"})

        assert add("one", COIN).status_code == add("two", COIN).status_code == add("one", COIN).status_code == 201
        assert add("one", LANTERN).status_code == 409
        held = gd.open(network).digest()
        assert http.get(f"{PATH}/one").json()["text"] is None
        assert zlib.compress(COIN.encode()) not in network.with_name(network.name + DOCUMENTS).read_bytes()
        assert http.request("DELETE", f"{PATH}/one", headers=WRITE).status_code == 400, "its text is not kept"
        assert http.request("DELETE", f"{PATH}/one", json={"text": LANTERN}, headers=WRITE).status_code == 400
        removed = http.request("DELETE", f"{PATH}/one", json={"text": COIN}, headers=WRITE).json()
        assert removed["certificate"] is None, "the other document has the same text"
        assert gd.open(network).digest() == held
        assert http.request("DELETE", f"{PATH}/two", json={"text": COIN}, headers=WRITE).json()["certificate"]
        assert gd.open(network).digest() != held


def test_prompts_end_with_the_commit_that_they_began_with(network: Path, clients: SharedClient) -> None:
    store, engines = NetworkStore(network), []
    reader = store.open(store.head())

    def source() -> ModelSource:
        engine = open_engine(client, reader)
        engines.append(engine)
        return ModelSource.of(reader, lambda: closing(engine), "net")

    with clients.use() as client, closing(Models([source()])) as models:
        models.open_default()
        model = asyncio.run(models.acquire("net", 1.0))
        prompt = Collected(model, "the captain", CompletionOptions(tokens=400))
        models.renew(source())
        assert len(prompt.result()) > 100
        # Closed, as its last prompt has ended.
        until(lambda: engines[0].health() is not None)
        assert engines[1].health() is None


def test_a_trace_ends_with_the_commit_that_it_began_with(
    network: Path, clients: SharedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write before its sentences are read."""
    traced = completions.trace_tokens
    writes: list[tuple[str, str]] = []

    def trace_tokens(*given: Any) -> None:
        while writes:
            add(*writes.pop())
        traced(*given)

    monkeypatch.setattr(completions, "trace_tokens", trace_tokens)
    asked: dict[str, Any] = {"prompt": "the captain hung the", "max_tokens": 1}
    with serving(network, clients) as (http, models):

        def add(name: str, text: str) -> None:
            assert http.post(PATH, json={"id": name, "text": text}, headers=WRITE).status_code == 201

        def trace() -> dict[str, Any]:
            answer = http.get("/v1/trace", params=asked)
            assert answer.status_code == 200, answer.text
            return answer.json()

        def shown(answer: dict[str, Any]) -> Any:
            return answer["choices"][0]["giaann"]["tokens"]

        alone = trace()
        writes.append(("ship", LANTERN))
        during = trace()
        assert shown(during) == shown(alone)
        assert during["system_fingerprint"] == alone["system_fingerprint"] != models.default.commit
        assert shown(trace()) != shown(alone)


def test_a_prompt_that_waited_names_the_commit_that_continues_it(network: Path, clients: SharedClient) -> None:
    store = NetworkStore(network)
    reader = store.open(store.head())

    async def ask(models: Models, later: ModelSource) -> list[str]:
        queue = RequestQueue(QueueOptions(slots=1, wait_s=200))
        model = await models.acquire("net", 1.0)
        asked = [("the captain", CompletionOptions(tokens=tokens)) for tokens in (9, 1)]
        first, second = (queue.enter(model, [each]) for each in asked)
        models.renew(later)
        before = [first.commit, second.commit]
        await second.next()
        commits = [first.commit, second.commit]
        await queue.close()
        return before + commits

    with clients.use() as client:
        source = ModelSource.of(reader, lambda: closing(open_engine(client, reader)), "net")
        with closing(Models([source])) as models:
            models.open_default()
            found = asyncio.run(ask(models, replace(source, commit="later")))
    assert found == [reader.commit, "later"] * 2


def test_interrupted_changes_are_completed_or_taken_back(network: Path, clients: SharedClient) -> None:
    """States of the table as a killed process leaves them, before and after its commit."""
    before = gd.open(network).digest()
    with serving(network, clients) as (http, _):
        assert http.post(PATH, json={"id": "coin", "text": COIN}, headers=WRITE).status_code == 201
    with closing(DocumentTable(network)) as table:
        coin = table.find("coin")
        assert coin is not None
        never = Document(id="never", parts=("00" * IDENTITY_BYTES,), characters=3, text="It was not committed.")
        table.put([coin, never], "adding")
    with serving(network, clients) as (http, _):
        assert [each["id"] for each in http.get(PATH).json()["data"]] == ["coin"]
    with closing(DocumentTable(network)) as table:
        table.put([coin], "removing")
    with serving(network, clients) as (http, models):
        assert gd.open(network).digest() == before
        assert models.default.commit == gd.open(network).commit
    with closing(DocumentTable(network)) as table:
        table.put([coin], "removing")
    with serving(network, clients) as (http, _):
        assert http.get(PATH).json()["data"] == []
        until(lambda: http.get(f"{PATH}/coin/certificate").json()["digest"] == before)


def test_the_table_says_what_is_wrong_with_its_file(tmp_path: Path) -> None:
    (tmp_path / f"net{DOCUMENTS}").write_text("no database, but some text that is long enough for a header" * 20)
    with pytest.raises(StoreWriteError, match="not a database"):
        DocumentTable(tmp_path / "net")
    with closing(DocumentTable(tmp_path / "other")) as table:
        table.put([Document(id="a", parts=("p",), characters=3, text="abc")], "adding")
        assert table.find("a") is None
        assert table.find("a", "adding") is not None
        assert (tmp_path / f"other{DOCUMENTS}").stat().st_mode & 0o077 == 0


@pytest.mark.cluster
def test_a_killed_server_loses_no_answered_change(network: Path, trained: Path, tmp_path: Path) -> None:
    options = ("--writable", "--write-key", "writer", "--workers", "0")
    texts = {
        f"d{number}": f"{LANTERN} The {name} sailed." for number, name in enumerate(["cook", "boy", "mate", "owl"])
    }
    answered: set[str] = set()
    server = Process(network, *options)
    killer = threading.Timer(0.0, server.process.kill)
    try:
        for name, text in texts.items():
            if len(answered) == 2:
                # Amid the third change.
                killer = threading.Timer(0.1, server.process.kill)
                killer.start()
            body = {"id": name, "text": text}
            if httpx2.post(f"{server.url}{PATH}", json=body, headers=WRITE, timeout=60).status_code == 201:
                answered.add(name)
    except httpx2.TransportError:
        pass
    finally:
        killer.join()
        server.process.communicate()
    again = Process(network, *options)
    gone = min(answered)
    try:
        held = {each["id"] for each in httpx2.get(f"{again.url}{PATH}", timeout=60).json()["data"]}
        assert 2 <= len(answered) <= len(held)
        assert answered <= held
        # Amid a removal.
        killer = threading.Timer(Random(len(held)).uniform(0.0, 0.2), again.process.kill)
        killer.start()
        if httpx2.delete(f"{again.url}{PATH}/{gone}", headers=WRITE, timeout=60).status_code == 200:
            held.discard(gone)
    except httpx2.TransportError:
        pass
    finally:
        killer.join()
        again.process.communicate()
    last = Process(network, *options)
    try:
        found = {each["id"] for each in httpx2.get(f"{last.url}{PATH}", timeout=60).json()["data"]}
        assert found | {gone} == held | {gone}
        assert gone in held or gone not in found
    finally:
        last.process.terminate()
        last.process.communicate(timeout=60)
    shutil.copytree(trained / "net", tmp_path / "apart")
    with gd.connect(workers=0) as client:
        apart = gd.train([texts[name] for name in sorted(found)], tmp_path / "apart", client=client)
    assert gd.open(network).digest() == apart.digest()
