"""Networks and corpora in Azure Blob Storage and Google Cloud Storage, whose emulators stand for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from support import emulators
from support.conflicts import TEXTS, renewed

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import OptionError, StoreMissingError, StoreRefusedError, StoreWriteError
from giaann_dask.object_urls import StorageOptions, object_path
from giaann_dask.store.locking import Lease, locked
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import StorePlace

pytest.importorskip("obstore", reason="needs obstore")

RULE = gd.Specification(regions=2, flags="canonical")


@pytest.fixture(scope="module", params=["azure", "google"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of a bucket, and the options of reaching it."""
    with getattr(emulators, request.param)(tmp_path_factory.mktemp(request.param)) as reached:
        yield reached


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


def test_a_network_in_another_object_store(store: tuple[str, dict[str, str]], client: Client, tmp_path: Path) -> None:
    """Train, go on, add, forget, read, remove garbage: as in a folder."""
    bucket, options = store
    a, b, total = (gd.place(f"{bucket}/nets/{name}", options) for name in ("a", "b", "sum"))
    for text in (TEXTS["a"], TEXTS["b"]):
        gd.train(text, a, client=client, specification=RULE)
        local = gd.train(text, tmp_path / "a", client=client, specification=RULE)
    assert exported(gd.open(a), tmp_path) == exported(local, tmp_path)
    assert gd.open(a).generate("The old miller").text == local.generate("The old miller").text
    assert gd.open(a).evaluate(TEXTS["c"], client=client).inferred == local.evaluate(TEXTS["c"], client=client).inferred
    corpus = gd.encode(TEXTS["c"], f"{bucket}/corpus", client=client, specification=RULE, storage_options=options)
    network = gd.train(corpus, b, client=client, specification=RULE)
    summed, apart = gd.add([gd.open(a), network], total), gd.add([local, network], tmp_path / "sum")
    assert exported(summed, tmp_path) == exported(apart, tmp_path)
    gd.forget(total, TEXTS["c"], client=client)
    assert exported(gd.open(total), tmp_path) == exported(local, tmp_path)
    before = StorePlace(total).size()
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    assert run(["compact", str(total), "--keep-commits", "1", *given]) == 0
    assert StorePlace(total).size() < before
    assert exported(gd.open(total), tmp_path) == exported(local, tmp_path)


def exported(network: gd.Network, folder: Path) -> bytes:
    return network.export(folder / "exported.npz").connections.read_bytes()


def test_two_writers_in_another_object_store(
    store: tuple[str, dict[str, str]], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, options = store
    place = object_path(f"{bucket}/contested", StorageOptions.of(options))
    network = gd.train(TEXTS["a"], place, client=client, specification=RULE)
    first, second = NetworkStore(network.path), NetworkStore(network.path)
    head = first.open(first.head())
    sessions = [each.begin() for each in (first, second)]
    kept = first.commit(sessions[0], [], head, head.manifest())
    with pytest.raises(StoreWriteError, match="another process has committed"):
        second.commit(sessions[1], [], head, head.manifest())
    assert first.head() == kept
    lease = Lease(place, renewals=300)
    assert renewed(lease)
    lease.require()
    with pytest.raises(StoreWriteError, match="is being written by process"), locked(place):
        pass
    lease.release()
    ended = json.dumps({"owner": "another", "token": "a", "until": time.time() - 1}).encode()
    StorePlace(str(place)).objects().put("contested.writer.lease", ended)
    with locked(place):
        pass


def test_a_bucket_that_is_not_there(store: tuple[str, dict[str, str]], client: Client) -> None:
    bucket, options = store
    place = gd.place(f"{bucket}-none/net", options)
    with pytest.raises(StoreMissingError):
        gd.open(place)
    with pytest.raises(StoreRefusedError, match="an existing bucket"):
        gd.train(TEXTS["a"], place, client=client)


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ("gs://bucket/net", {"service_account": "/nowhere.json"}, "Unable to open service account file"),
        ("az://bucket/net", {"account": "a", "account_key": "%"}, "Invalid symbol"),
    ],
)
def test_credentials_that_cannot_be_read(place: str, options: dict[str, str], said: str) -> None:
    """Icechunk would end the process with a panic; no request is made."""
    with pytest.raises(OptionError, match=said):
        gd.open(place, storage_options=options)
