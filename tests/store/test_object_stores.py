"""Networks in an object store: the server of `moto` stands for S3."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
from dask._task_spec import Task
from distributed import Client, LocalCluster
from support.conflicts import RULE, TEXTS, interrupted, renewed
from support.processes import until
from support.village import write_village

import giaann_dask as gd
from giaann_dask.api.islands import create_island
from giaann_dask.cli import run
from giaann_dask.cli.commands import giaann_dask
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import (
    EmptyInputError,
    InputMissingError,
    OptionError,
    StoreExistsError,
    StoreMissingError,
    StoreRefusedError,
    StoreUnreachableError,
    StoreUnsharedError,
    StoreWriteError,
)
from giaann_dask.events import Committed, Event
from giaann_dask.object_urls import ObjectPath, absolute_place
from giaann_dask.store import network_store
from giaann_dask.store.corpus import is_corpus
from giaann_dask.store.corpus_writing import CorpusWriter
from giaann_dask.store.locking import Lease, LeaseObject, LockToken, inspect_folder, locked, require_place
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace
from giaann_dask.store.run_io import fork_session, write_run
from giaann_dask.store.unfinished import is_vacant

# Neither is imported where these tests are collected and run by another process.
for needed in ("moto", "obstore"):
    if find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)


# Few regions: what a network in a bucket costs is requests, some for each of them.
FEW = gd.Specification(**RULE)
SEEDED = gd.GenerationOptions(max_tokens=8, sampling=gd.SamplingOptions(seed=1))


class Requests(logging.Handler):
    """Requests that the server has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def since(self, begin: int, method: str) -> int:
        """Return how many requests of a method came after the first `begin` ones."""
        return sum(f'"{method} ' in line for line in self.lines[begin:])


@pytest.fixture(scope="module")
def requests() -> Iterator[Requests]:
    """The requests to a server with the bucket ``bucket``, whose address is in the environment."""
    from moto.server import ThreadedMotoServer

    handler, logger = Requests(), logging.getLogger("werkzeug")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "alice")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")).close()
        yield handler
    server.stop()
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


def export(network: gd.Network, folder: Path, name: str) -> bytes:
    path = folder / f"{name}.npz"
    network.export(path)
    return path.read_bytes()


@pytest.mark.cluster
def test_training_in_a_bucket_equals_training_in_a_folder(requests: Requests, tmp_path: Path) -> None:
    # Networks of profile v1 are in buckets in all other tests.
    rule, place = gd.Specification(profile="contexts", **RULE), "s3://bucket/networks/best"
    with gd.connect(workers=2) as workers:
        for text in (sample_test_text(), write_village(tmp_path / "village.txt", 20)):
            network = gd.train(text, place, client=workers, specification=rule)
            folder = gd.train(text, tmp_path / "net", client=workers, specification=rule)
        asked = {"client": workers, "options": SEEDED}
        answers = [each.generate("The old miller carried", **asked).text for each in (network, folder)]
        assert answers[0] == answers[1]
    opened = gd.open(place)
    assert export(opened, tmp_path, "bucket") == export(folder, tmp_path, "folder")
    assert opened.generate("The old miller carried", options=SEEDED).text == answers[1]
    assert [commit.message for commit in opened.log()] == [commit.message for commit in folder.log()]
    assert opened.describe()["bytes_on_disk"] == StorePlace(place).size() > 50_000
    assert f"{opened.path}" == place
    assert not [key for keys, _ in StorePlace("s3://bucket/networks").entries() for key in keys if "lease" in key]


def test_a_corpus_in_a_bucket_equals_one_in_a_folder(requests: Requests, client: Client, tmp_path: Path) -> None:
    place = "s3://bucket/corpora/village"
    begun = len(requests.lines)
    stored, local = (gd.encode(sample_text(), out, client=client) for out in (place, tmp_path / "corpus"))
    # One chunk of each of the ten arrays; snapshots, manifests and transactions of two commits; the lease.
    assert requests.since(begun, "PUT") <= 60
    assert is_corpus(place)
    assert not is_corpus("s3://bucket/corpora")
    assert str(stored.path) == place
    assert stored.bytes_on_disk > 10_000
    blocks = [each.encoded() for each in (stored, local)]
    assert blocks[0].column.tobytes() == blocks[1].column.tobytes()
    assert stored.ledger() == local.ledger()
    networks = [
        gd.train(source, tmp_path / name, client=client, specification=FEW)
        for name, source in (("a", place), ("b", sample_text()))
    ]
    assert export(networks[0], tmp_path, "x") == export(networks[1], tmp_path, "y")
    assert networks[0].evaluate(place, client=client, options=gd.EvaluationOptions(max_sequences=3)).inferred
    with pytest.raises(StoreExistsError, match="exists already"):
        gd.encode(sample_text(), place, client=client)
    with pytest.raises(StoreExistsError, match="exists already"):
        gd.encode(sample_text(), "s3://bucket/corpora/village", client=client)


def test_an_unfinished_corpus_in_a_bucket_is_written_again(requests: Requests, client: Client) -> None:
    place = absolute_place("s3://bucket/corpora/unfinished")
    with locked(place) as held:
        # What a killed process leaves.
        CorpusWriter(place, held)
        assert not is_corpus(place)
        with pytest.raises(StoreWriteError, match="is being"):
            gd.encode(sample_test_text(), place, client=client)
    assert len(gd.encode(sample_test_text(), place, client=client)) == 40
    with pytest.raises(EmptyInputError):
        gd.encode(["Yes ."], "s3://bucket/corpora/empty", client=client)
    assert not list(StorePlace("s3://bucket/corpora/empty").entries())


def test_requests_of_a_commit_and_of_an_answer_are_bounded(
    requests: Requests, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gd.train(write_village(tmp_path / "village.txt", 20), "s3://bucket/counted", client=client, specification=FEW)
    begun = len(requests.lines)
    events: list[Event] = []
    report = gd.train(sample_test_text(), "s3://bucket/counted", client=client, observer=events.append).training_report
    # Two runs, their counts, the arrays of the network that have grown, and Icechunk's own files; the lease.
    assert requests.since(begun, "PUT") - 1 == report.commit_requests < 80
    (committed,) = [event for event in events if isinstance(event, Committed)]
    assert (committed.requests, committed.nbytes) == (report.commit_requests, report.commit_bytes)
    assert 10_000 < committed.nbytes < StorePlace("s3://bucket/counted").size()
    # Of a snapshot that is remembered, and of one that is larger than what is remembered at first.
    gets = []
    for nodes in (10_000, 10):
        monkeypatch.setattr(network_store, "_NODES", nodes)
        begun = len(requests.lines)
        gd.open("s3://bucket/counted").generate("The old miller carried")
        assert requests.since(begun, "PUT") == 0
        gets.append(requests.since(begun, "GET"))
    assert gets[0] < 120
    assert gets[1] < 1.5 * gets[0]


def test_a_commit_that_came_first_is_kept(requests: Requests, client: Client) -> None:
    network = gd.train(sample_test_text(), "s3://bucket/contested", client=client, specification=FEW)
    first, second = NetworkStore(network.path), NetworkStore(network.path)
    head = first.open(first.head())
    sessions = [store.begin() for store in (first, second)]
    kept = first.commit(sessions[0], [], head, head.manifest())
    with pytest.raises(StoreWriteError, match="another process has committed"):
        second.commit(sessions[1], [], head, head.manifest())
    assert first.head() == kept


def test_a_lease_that_another_process_holds_at_a_commit_is_waited_for(
    requests: Requests, client: Client, tmp_path: Path
) -> None:
    place, rule = "s3://bucket/awaited", {"flags": "canonical"}
    content = {"owner": "another", "token": "b", "until": time.time() + 6}

    def take() -> None:
        content["until"] = time.time() + 2
        StorePlace(place).objects().put("awaited.writer.lease", json.dumps(content).encode())

    network = interrupted(TEXTS["b"], place, client, take, **rule)
    local = gd.train(TEXTS["b"], tmp_path / "local", client=client, specification=gd.Specification(**RULE, **rule))
    assert export(network, tmp_path, "bucket") == export(local, tmp_path, "folder")


def test_a_second_writer_is_refused_until_the_lease_ends(requests: Requests, caplog: pytest.LogCaptureFixture) -> None:
    path = ObjectPath("s3://bucket/leased")
    with locked(path) as held:
        token = held.mark()
        assert held.mark() == token
        require_place(token)
        with pytest.raises(StoreWriteError, match="is being written by process"), locked(path):
            pass
        with pytest.raises(StoreUnsharedError, match="another lease"):
            require_place(LockToken(str(path), "other"))
    with pytest.raises(StoreUnsharedError, match="another lease"):
        require_place(token)
    objects, key = StorePlace(str(path)).objects(), "leased.writer.lease"
    objects.put(key, json.dumps({"owner": "process 1 on lost", "token": "a", "until": time.time() - 1}).encode())
    with locked(path):
        assert "process 1 on lost had expired" in caplog.text
    objects.put(key, b"no lease at all")
    with pytest.raises(StoreWriteError, match="an unknown process"), locked(path):
        pass
    objects.delete(key)


def test_a_lease_is_renewed_and_its_loss_is_noticed(requests: Requests) -> None:
    path = ObjectPath("s3://bucket/renewed")
    lease = Lease(path, renewals=300)
    try:
        assert renewed(lease)
        assert renewed(lease)
        lease.require()
        with pytest.raises(StoreWriteError, match="is being written"):
            Lease(path)
        # As another process does that believes it to have ended.
        content = {"owner": "another", "token": "b", "until": time.time() + 60}
        StorePlace(str(path)).objects().put("renewed.writer.lease", json.dumps(content).encode())
        until(lambda: lease.lost)
        with pytest.raises(StoreWriteError, match="lease of network s3://bucket/renewed was lost"):
            lease.require()
    finally:
        lease.release()
    assert inspect_folder(str(path)).tokens == ("b",), "a lease of another process stays"
    StorePlace(str(path)).objects().delete("renewed.writer.lease")


def test_forgetting_in_a_bucket_leaves_nothing_beside_it(requests: Requests, client: Client, tmp_path: Path) -> None:
    rule = gd.Specification(flags="canonical", regions=2)
    place = "s3://bucket/forgetful"
    more = write_village(tmp_path / "village.txt", 20)
    gd.train([sample_test_text(), more], place, client=client, specification=rule)
    gd.forget(place, more, client=client)
    alone = gd.train(sample_test_text(), tmp_path / "alone", client=client, specification=rule)
    assert export(gd.open(place), tmp_path, "one") == export(alone, tmp_path, "two")
    kept = [each["path"] for batch in StorePlace(place).objects().list() for each in batch]
    assert {key.split("/")[0] for key in kept if key.startswith("forgetful")} == {"forgetful"}


def test_a_place_without_a_network(requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_vacant(ObjectPath("s3://bucket/empty"))
    with pytest.raises(StoreMissingError, match="there is no network at s3://bucket/empty"):
        gd.open("s3://bucket/empty")
    with pytest.raises(StoreMissingError, match="bucket of s3://none/empty cannot be read"):
        gd.open("s3://none/empty")
    assert run(["inspect", "s3://bucket/empty"]) == 2
    assert capsys.readouterr().err.startswith("giaann-dask: there is no network at s3://bucket/empty")


def test_a_network_is_not_created_twice(requests: Requests, client: Client) -> None:
    network = gd.train(sample_test_text(), "s3://bucket/once", client=client, specification=FEW)
    store = NetworkStore(network.path)
    reader = store.open(store.head())
    with pytest.raises(StoreExistsError):
        NetworkStore.create(network.path, reader.manifest(), reader.ever_pos())


def test_an_object_store_that_does_not_answer(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreUnreachableError, match="does not respond"), locked(ObjectPath("s3://bucket/far")):
        pass
    state = inspect_folder("s3://bucket/far")
    assert not state.there
    assert "does not respond" in state.problem(LockToken("s3://bucket/far", "a"))


def test_a_lease_whose_renewal_was_not_confirmed_is_kept(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ObjectPath("s3://bucket/unconfirmed")
    lease, failed = Lease(path, renewals=300), threading.Event()
    read = LeaseObject.read

    def fail_once(found: LeaseObject) -> Any:
        if failed.is_set():
            return read(found)
        failed.set()
        raise OSError("no answer")

    try:
        # As if the answer to a renewal had been lost: the object has another version than this process knows, and
        # which one is not found out at once.
        monkeypatch.setattr(LeaseObject, "read", fail_once)
        content = {"owner": "this process", "token": lease.token, "until": time.time() + 60}
        StorePlace(str(path)).objects().put("unconfirmed.writer.lease", json.dumps(content).encode())
        until(failed.is_set)
        assert renewed(lease)
        lease.require()
    finally:
        lease.release()
    assert inspect_folder(str(path)).tokens == ()


def test_a_bucket_that_cannot_be_written(requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreRefusedError, match="network s3://none/net cannot be written"):
        Lease(ObjectPath("s3://none/net"))
    assert run(["train", str(sample_text()), "--network", "s3://none/net", "--workers", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.cluster
def test_storage_options_replace_the_environment_and_are_shown_nowhere(
    requests: Requests,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secret = "JXq7-hidden"
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    given = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "bob", "secret_access_key": secret}
    StorePlace("s3://bucket/optional").objects().put("optional/a.txt", sample_test_text().read_bytes())
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    events: list[Event] = []
    logged = logging.getLogger("distributed")
    said = logging.handlers.BufferingHandler(10_000)
    logged.addHandler(said)
    # A worker process has neither the environment nor the options, but for what tasks bring.
    with gd.connect(workers=1) as workers:
        names = tmp_path / "names.lst"
        names.write_text("s3://bucket/optional/a.txt\n")
        corpus = gd.encode(gd.Files(f"@{names}"), "s3://bucket/apart", client=workers, storage_options=given)
        private: dict[str, Any] = {"client": workers, "storage_options": given, "observer": events.append}
        network = gd.train(corpus, "s3://bucket/private", specification=FEW, **private)
        read = gd.place("s3://bucket/optional/a.txt", given)
        assert network.evaluate([read], client=workers, max_sequences=3).inferred
        keys = workers.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    logged.removeHandler(said)
    opened = gd.open("s3://bucket/private", storage_options={**given, "path_style": "true"})
    local = gd.train(sample_test_text(), tmp_path / "local", client=client, specification=FEW)
    assert export(opened, tmp_path, "bucket") == export(local, tmp_path, "folder")
    options = [f"--storage-option={name}={value}" for name, value in given.items()]
    assert run(["inspect", "s3://bucket/private", "--json", *options]) == 0
    shown = [repr(events), repr(keys), repr(opened), str(opened.describe()), *map(repr, said.buffer)]
    assert not [text for text in (*shown, *capsys.readouterr()) if secret in text]
    with NetworkStore(opened.path).lock() as held:
        fork = fork_session(NetworkStore(opened.path).begin(), held.mark())
    # Dask logs the arguments of a task that has failed.
    assert secret.encode() in fork
    assert secret not in repr(Task("key", write_run, fork, "run"))
    for place in ("private", "apart"):
        store = StorePlace(gd.place(f"s3://bucket/{place}", given))
        stored = b"".join(bytes(store.objects().get(key).bytes()) for keys, _ in store.entries() for key in keys)
        assert len(stored) > 10_000
        assert secret.encode() not in stored


def change_environment(values: dict[str, str | None]) -> None:
    """Set variables of this process, and remove those without a value."""
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.mark.cluster
def test_a_worker_that_cannot_reach_a_store_is_named(requests: Requests, client: Client, tmp_path: Path) -> None:
    """It has not the environment of its client: no region first, then no credentials."""
    place, corpus = "s3://bucket/reached", "s3://bucket/reached-corpus"
    network = gd.train(sample_test_text(), place, client=client, specification=FEW)
    gd.encode(sample_test_text(), corpus, client=client, specification=FEW)
    bare: dict[str, str | None] = dict.fromkeys(
        ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    )
    # Neither files nor services of a virtual machine have credentials.
    bare["AWS_EC2_METADATA_DISABLED"] = "true"
    bare["AWS_CONFIG_FILE"] = bare["AWS_SHARED_CREDENTIALS_FILE"] = str(tmp_path / "none")
    reached = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
    silent = logging.CRITICAL
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=silent) as cluster:
        for values, missing in (({**bare}, "without a region"), ({**bare, **reached}, "without credentials")):
            # A client of its own each time, for failed tasks of one key are not run again while their errors are held.
            with Client(cluster) as workers:
                (address,) = workers.scheduler_info()["workers"]
                workers.run(change_environment, values)
                for call in (
                    lambda client: network.evaluate(sample_test_text(), client=client, max_sequences=3),
                    lambda client: network.generate("The old miller carried", client=client),
                    lambda client: gd.train(corpus, tmp_path / "net", client=client),
                ):
                    with pytest.raises((StoreUnsharedError, StoreUnreachableError)) as failure:
                        call(workers)
                    assert f"worker {address} on host" in failure.value.received
                    assert missing in failure.value.received
                    assert "storage_options" in failure.value.remedy
        with Client(cluster) as workers, pytest.raises(StoreUnsharedError, match="cannot read it") as failure:
            gd.train(sample_test_text(), "s3://bucket/unreached", client=workers)
        assert f"worker {address} on host" in failure.value.received
        assert len(str(failure.value)) < 500


# Of every command that takes a place, arguments that name one in a bucket which is not there.
PLACES = {
    "add": "s3://none/a s3://none/b --out s3://none/c",
    "branch": "s3://none/a",
    "checkout": "s3://none/a main",
    "compact": "s3://none/a",
    "diff": "s3://none/a s3://none/b",
    "digest": "s3://none/a",
    "draw": "s3://none/a --out a.svg",
    "encode": "s3://none/a.txt --out s3://none/c",
    "evaluate": "s3://none/a s3://none/a.txt",
    "export": "s3://none/a --out a.npz",
    "forget": "s3://none/a --document s3://none/a.txt",
    "generate": "s3://none/a miller",
    "inspect": "s3://none/a",
    "island create": "s3://none/a island --key me=key.pub",
    "island join": "a.island s3://none/b",
    "island pack": "s3://none/a s3://none/a.txt --island a.island --key key --out bundle",
    "island merge": "s3://none/a bundle --island a.island",
    "plan": "s3://none/a.txt",
    "job backup": "--network s3://none/a --to s3://none/b",
    "job compare": "--train s3://none/a.txt --evaluate s3://none/b.txt --tagger lexicon --output compared",
    "job nightly": "--network s3://none/a --text s3://none/a.txt",
    "job weekly": "--network s3://none/a --evaluate s3://none/a.txt",
    "index": "s3://none/a s3://none/a.txt",
    "log": "s3://none/a",
    "prune": "s3://none/a --keep 0.5 --out s3://none/b",
    "report": "s3://none/a --out a.html",
    "serve": "s3://none/a --port 0",
    "tag": "s3://none/a",
    "tokenizer train": "s3://none/a.txt --out a.json",
    "trace": "s3://none/a miller",
    "train": "s3://none/a.txt --network s3://none/a",
}
# The doctor finds what is wrong instead, two need a running cluster; the others name only files of this machine.
# Texts of a research are named in such a file.
WITHOUT = {"cluster", "cluster stop", "compile", "doctor", "island key", "island keys", "island show"}
WITHOUT |= {"persist", "unpersist", "job research"}


def names_of_commands(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from names_of_commands(command, f"{before}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield before + name


def test_every_command_says_in_one_line_that_a_bucket_is_not_there(
    requests: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(names_of_commands(giaann_dask)) - WITHOUT == set(PLACES)
    monkeypatch.chdir(tmp_path)
    create_island(tmp_path / "net", tmp_path / "a.island", {})
    assert run(["island", "key", "key"]) == 0
    capsys.readouterr()
    for name, arguments in PLACES.items():
        secret = ["--storage-option=access_key_id=bob", "--storage-option=secret_access_key=JXq7-hidden"]
        assert run([*name.split(), *arguments.split(), *secret]) == 2, name
        out, err = capsys.readouterr()
        assert err.startswith("giaann-dask: "), name
        assert err.count("\n") == 1, name
        assert "s3://none/" in err or name == "island merge", name
        assert "hidden" not in out + err, name
    assert run(["doctor", "--network", "s3://none/a"]) == 3
    assert "the bucket of s3://none/a cannot be read" in " ".join(capsys.readouterr().out.split())


def test_files_of_this_machine_are_not_named_by_urls(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As paths, URLs would be folders of a colon."""
    monkeypatch.chdir(tmp_path)
    network = gd.train(sample_test_text(), tmp_path / "net", client=client, specification=FEW)
    with pytest.raises(OptionError, match="a file at s3://bucket/a"):
        network.export("s3://bucket/a.npz")
    text = str(sample_test_text())
    for arguments in (
        ["export", "net", "--out", "s3://bucket/a.zarr"],
        ["evaluate", "net", text, "--report", "s3://bucket/a.html"],
        ["island", "key", "s3://bucket/key"],
        ["job", "nightly", "--network", "net", "--text", text, "--history", "s3://bucket/a.jsonl"],
        ["job", "weekly", "--network", "net", "--evaluate", text, "--reports", "s3://bucket/reports"],
        ["job", "compare", "--train", text, "--evaluate", text, "--tagger", "lexicon", "--output", "s3://bucket/a"],
    ):
        assert run(arguments) == 2, arguments
        assert "a file at s3://bucket/" in capsys.readouterr().err, arguments
    assert run(["encode", "@s3://bucket/names", "--out", "corpus"]) == 2
    assert "the list 's3://bucket/names' is at a URL" in capsys.readouterr().err
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"end_point": "http://a"}, "'end_point' is unknown; expected one of endpoint, region"),
        ({"endpoint": "127.0.0.1:9000"}, "endpoint is no address"),
        ({"access_key_id": "a"}, "without the other"),
        ({"anonymous": "true", "access_key_id": "a", "secret_access_key": "b"}, "anonymous with access_key_id"),
        ({"path_style": "perhaps"}, "path_style is 'perhaps'; expected true or false"),
    ],
)
def test_storage_options_that_cannot_be_used(
    options: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OptionError, match=said):
        gd.open("s3://bucket/net", storage_options=options)
    pairs = [f"--storage-option={name}={value}" for name, value in options.items()]
    assert run(["inspect", "s3://bucket/net", *pairs]) == 2
    error = capsys.readouterr().err
    assert error.startswith("giaann-dask: --storage-option: ")
    assert error.count("\n") == 1


def test_text_in_a_bucket(requests: Requests, client: Client, tmp_path: Path) -> None:
    objects = StorePlace("s3://bucket/text").objects()
    for name, path in (("a.txt", sample_text()), ("more/b.txt", sample_test_text())):
        objects.put(f"text/{name}", path.read_bytes())
    objects.put("text/c.pdf", b"no text")
    local = gd.train(
        gd.Files([sample_text(), sample_test_text()]), tmp_path / "local", client=client, specification=FEW
    )
    for given in ("s3://bucket/text", "s3://bucket/text/**/*.txt"):
        network = gd.train(given, tmp_path / str(len(given)), client=client, specification=FEW)
        assert export(network, tmp_path, "remote") == export(local, tmp_path, "local")
    with pytest.raises(InputMissingError, match="no file at 's3://bucket/text/none"):
        gd.train("s3://bucket/text/none.txt", tmp_path / "none", client=client)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_archive_that_is_not_in_a_bucket(requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["encode", "zip://a.txt::s3://bucket/none.zip", "--out", "s3://bucket/none", "--workers", "0"]) == 2
    assert capsys.readouterr().err == (
        "giaann-dask: there is no file at 'zip://a.txt::s3://bucket/none.zip'; correct the address\n"
    )


def test_urls_of_azure_name_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(OptionError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        StorePlace("az://container/net").storage()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert "container" in str(StorePlace("az://container/net").storage())
    assert "bucket" in str(StorePlace("gs://bucket/net").storage())


def test_urls_stay_urls() -> None:
    place = absolute_place("s3://bucket/networks/village")
    assert isinstance(place, ObjectPath)
    assert str(place) == str(absolute_place(place)) == str(place.resolve()) == "s3://bucket/networks/village"
    assert str(place.parent / "other") == "s3://bucket/networks/other"
