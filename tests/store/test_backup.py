"""Places of networks, requests to object stores, and copies of commits that were written without training."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import icechunk
import pytest
import zarr
from support.stored_networks import RUNS, commit_runs, create_network, edit_manifest
from zarr.core.sync import sync

from giaann_dask.errors import (
    OptionError,
    StoreDamagedError,
    StoreExistsError,
    StoreMissingError,
    StoreRefusedError,
    StoreUnreachableError,
    StoreWriteError,
)
from giaann_dask.store.backup import StorePlace, answering, copy_commit
from giaann_dask.store.icechunk_library import create_repository
from giaann_dask.store.network_store import NetworkStore


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> NetworkStore:
    """A network of two commits, each with a run that the other does not have."""
    path = tmp_path_factory.mktemp("written") / "net"
    store = create_network(path)
    commit_runs(store, RUNS[:2])
    commit_runs(store, RUNS[1:])
    return store


def place_of(store: NetworkStore) -> StorePlace:
    return StorePlace(str(store.path))


# --- Places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", ["ftp://some/where", "s3://", "s3://bucket", "s3://bucket/", "s3://bucket//", "s3:///a"]
)
def test_a_place_needs_a_known_scheme_a_bucket_and_a_prefix(wrong: str) -> None:
    with pytest.raises(OptionError, match="s3://BUCKET/PREFIX"):
        StorePlace(wrong)


def test_a_folder_that_holds_no_network(tmp_path: Path) -> None:
    place = StorePlace(str(tmp_path / "a" / "b"))
    assert not place.exists()
    with pytest.raises(StoreMissingError, match="no network at"):
        place.repository()
    assert not list(tmp_path.iterdir()), "reading makes nothing"
    (tmp_path / "file").write_text("mine")
    for occupied in (tmp_path, tmp_path / "file"):
        with pytest.raises(StoreExistsError, match="not a network"):
            StorePlace(str(occupied)).repository(make=True)
    with pytest.raises(StoreRefusedError, match=f"network {tmp_path}/file/net could not be written"):
        StorePlace(str(tmp_path / "file" / "net")).repository(make=True)
    (tmp_path / "refs").write_text("no folder")
    with pytest.raises(icechunk.IcechunkError, match="Not a directory"):
        StorePlace(str(tmp_path)).exists()
    place.repository(make=True)
    assert place.exists()
    (tmp_path / "empty").mkdir()
    assert StorePlace(str(tmp_path / "empty")).repository(make=True).list_branches() == {"main"}


# --- Object stores --------------------------------------------------------------------------------


class ObjectStore:
    """An HTTP server on this machine that answers every request with one status, and records the requests."""

    def __init__(self, status: int) -> None:
        self.requests: list[tuple[str, str]] = []
        recorded = self.requests

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                recorded.append((self.path, self.headers.get("Authorization", "")))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def refusing() -> Iterator[ObjectStore]:
    """An object store that refuses everything."""
    store = ObjectStore(403)
    yield store
    store.server.shutdown()
    store.server.server_close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials, and no other variable of S3."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "alice")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return monkeypatch


def described_options(place: StorePlace) -> dict[str, str]:
    """Return the options that Icechunk describes; its version 2 leaves out those that are false."""
    return dict(re.findall(r"(\w+)(?:=|: )([^,\s()]+)", str(place.storage()).replace("True", "true")))


# An address at which nothing listens, to be passed over.
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_ENDPOINT_URL": "{here}", "AWS_REGION": "mars"},
        {"AWS_ENDPOINT_URL_S3": "{here}", "AWS_DEFAULT_REGION": "mars"},
        {"AWS_ENDPOINT_URL_S3": "{here}", "AWS_ENDPOINT_URL": NOWHERE, "AWS_REGION": "mars"},
        {"AWS_ENDPOINT_URL": "{here}", "AWS_REGION": "mars", "AWS_DEFAULT_REGION": "venus"},
    ],
)
def test_requests_go_where_the_environment_says(
    refusing: ObjectStore, environment: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value.format(here=refusing.url))
    described = described_options(StorePlace("s3://bucket/a/village/"))
    assert described["region"] == "mars"
    assert described["endpoint_url"] == refusing.url
    assert described["allow_http"] == "true"
    with pytest.raises(StoreMissingError, match=r"bucket of s3://bucket/a/village/ cannot be read") as failure:
        StorePlace("s3://bucket/a/village/").exists()
    assert isinstance(failure.value.__cause__, icechunk.IcechunkError)
    assert "AWS_ACCESS_KEY_ID" in failure.value.remedy
    assert refusing.requests
    for path, authorization in refusing.requests:
        # The bucket is in the path where there is an endpoint, whose host names are not those of buckets.
        assert path.startswith("/bucket"), path
        assert "a/village" in path, path
        assert "a/village//" not in path, path
        assert "Credential=alice/" in authorization
        assert "/mars/s3/" in authorization


def test_only_an_endpoint_decides_about_encryption_and_host_names(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_REGION", "mars")
    place = StorePlace("s3://bucket/village")
    described = described_options(place)
    assert {described.get(name, "false") for name in ("allow_http", "force_path_style")} == {"false"}
    environment.setenv("AWS_ENDPOINT_URL", "https://store.example")
    described = described_options(place)
    assert described.get("allow_http", "false") == "false"
    assert described["force_path_style"] == "true"


REFUSED = "dispatch failure", "operation timed out", "connection refused", "connection reset by peer"


def causing(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.parametrize(
    "wrap",
    [lambda error: error, lambda error: causing(StoreDamagedError("x"), error)],
    ids=["itself", "as a cause"],
)
def test_a_store_that_does_not_answer(message: str, wrap: Callable[[Exception], Exception]) -> None:
    error = wrap(icechunk.IcechunkError(message))
    with pytest.raises(StoreUnreachableError, match="AWS_ENDPOINT_URL") as failure, answering():
        raise error
    assert failure.value.__cause__ is error


def fail_while_handling() -> None:
    try:
        raise icechunk.IcechunkError("connection refused")
    except icechunk.IcechunkError:
        raise KeyError("x")  # noqa: B904


def test_an_error_while_another_was_handled_is_one_of_the_network() -> None:
    with pytest.raises(StoreUnreachableError), answering():
        fail_while_handling()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection refused"),
        icechunk.IcechunkError("no such snapshot"),
        causing(StoreWriteError("the disk is full"), icechunk.IcechunkError("timed out")),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as failure, answering():
        raise error
    assert failure.value is error


# --- Copies ---------------------------------------------------------------------------------------


def test_copies_follow_the_network_and_old_ones_are_forgotten(network: NetworkStore, tmp_path: Path) -> None:
    place = StorePlace(str(tmp_path / "copies" / "net"))
    newest, older = (commit for commit, _ in network.commits()[:2])
    reports = [copy_commit(place_of(network), place, commit) for commit in (older, newest)]
    assert reports[0].written == reports[0].keys, "everything is new"
    assert 0 < reports[1].written < reports[1].keys, "what both have is not written again"
    copy = NetworkStore(tmp_path / "copies" / "net")
    for report, commit, names in zip(reports, (older, newest), (RUNS[:2], RUNS[1:]), strict=True):
        assert (report.commit, report.runs, report.connections) == (commit, 2, 4)
        assert report.regions == len({name[:5] for name in names})
        assert copy.open(report.copy).stored_runs() == set(names)
        assert report.as_dict()["checksum"] == report.checksum
    assert reports[0].checksum != reports[1].checksum
    assert reports[1].nbytes == sync(network.begin().store.getsize_prefix(""))
    again = copy_commit(place_of(network), place)
    assert (again.written, again.copy) == (0, reports[1].copy)
    assert (again.checksum, again.nbytes) == (reports[1].checksum, reports[1].nbytes)
    for keep, kept in ((3, 2), (2, 2), (1, 1)):
        copy_commit(place_of(network), place, keep=keep)
        # After the copies comes the empty commit with which every repository begins.
        found = list(place.repository().ancestry(branch="main"))[:-1]
        assert [info.id for info in found] == [report.copy for report in reversed(reports)][:kept]
        assert [info.metadata["commit"] for info in found] == [newest, older][:kept]
        assert len(list((copy.path / "snapshots").iterdir())) == kept + 1


def test_a_checksum_depends_on_names_and_bytes_of_all_entries(network: NetworkStore, tmp_path: Path) -> None:
    reports = []
    for name, value in (("a", 1), ("a", 2), ("b", 1)):
        target = tmp_path / f"{name}{value}"
        copy_commit(place_of(network), StorePlace(str(target)))
        change(target, lambda root, name=name, value=value: root.require_group("runs").attrs.update({name: value}))
        reports.append(copy_commit(StorePlace(str(target)), StorePlace(f"{target} copy")))
    assert len({report.checksum for report in reports}) == 3


def test_refused_copies(network: NetworkStore, tmp_path: Path) -> None:
    place = StorePlace(str(tmp_path / "copy"))
    for keep in (0, -1):
        with pytest.raises(OptionError, match=f"keep is {keep}"):
            copy_commit(place_of(network), place, keep=keep)
    for name in ("no identity", "0" * 20):
        with pytest.raises(StoreMissingError, match=f"no commit {name}") as failure:
            copy_commit(place_of(network), place, name)
        assert failure.value.__cause__ is not None
    assert not place.exists()
    (tmp_path / "empty").mkdir()
    create_repository(icechunk.local_filesystem_storage(str(tmp_path / "empty")), None)
    with pytest.raises(StoreMissingError):
        copy_commit(StorePlace(str(tmp_path / "empty")), place)
    assert not place.exists(), "a source that is no network is found before anything is written"
    copy_commit(place_of(network), place)
    with pytest.raises(StoreExistsError, match="not a copy"):
        copy_commit(place, place_of(network))


class LostPlace(StorePlace):
    """A place whose network cannot be reached."""

    def repository(self, *, make: bool = False) -> icechunk.Repository:
        raise icechunk.IcechunkError("error sending request: connection refused")


def test_a_copy_to_a_store_that_does_not_answer(network: NetworkStore) -> None:
    with pytest.raises(StoreUnreachableError, match="then run it again"):
        copy_commit(place_of(network), LostPlace("s3://bucket/village"))


def test_a_copy_that_did_not_end_is_begun_again(network: NetworkStore, tmp_path: Path) -> None:
    place = StorePlace(str(tmp_path / "copy"))
    repository = place.repository(make=True)
    repository.create_branch("incoming", repository.lookup_branch("main"))
    assert copy_commit(place_of(network), place).connections == 4
    assert place.repository().list_branches() == {"main"}


def change(path: Path, edit: Callable[[Any], object]) -> None:
    """Commit something that training does not commit."""
    session = NetworkStore(path).begin()
    edit(zarr.open_group(session.store, mode="a"))
    session.commit("by hand")


def one_connection_more(root: Any) -> None:
    runs = [dict(run) for run in root.attrs["manifest"]["runs"]]
    runs[0]["connections"] += 1
    edit_manifest(root, runs=runs)


def one_run_less(root: Any) -> None:
    edit_manifest(root, runs=root.attrs["manifest"]["runs"][:1])


def no_tables(root: Any) -> None:
    del root[f"runs/{RUNS[1]}/joined"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (one_connection_more, "2 connections in run 00001.00000000-00000000 of region 1; expected 3"),
        (one_run_less, "other runs"),
        (no_tables, "no connections of run 00001.00000000-00000000"),
    ],
)
def test_a_commit_that_contradicts_its_manifest_is_not_copied(
    network: NetworkStore, tmp_path: Path, edit: Callable[[Any], None], message: str
) -> None:
    damaged, place = tmp_path / "damaged", StorePlace(str(tmp_path / "copy"))
    copy_commit(place_of(network), StorePlace(str(damaged)))
    whole = copy_commit(place_of(network), place)
    change(damaged, edit)
    with pytest.raises(StoreDamagedError, match=message):
        copy_commit(StorePlace(str(damaged)), place)
    assert NetworkStore(tmp_path / "copy").head() == whole.copy, "the earlier copy stays"
