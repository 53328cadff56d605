"""Whether a network's folder is the same for all: the lock, its token, paths, and workers that see another folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import OptionError, StoreExistsError, StoreUnsharedError, StoreWriteError
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.object_urls import ObjectPath, absolute_place
from giaann_dask.rows.regions import open_placement
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import Specification
from giaann_dask.store.locking import WriteLock, inspect_folder, locked, require_place
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.run_io import write_run
from giaann_dask.store.unfinished import LOCK_FILE, UNFINISHED
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.target import open_store
from giaann_dask.training.tasks import pack_run

SHORT = gd.TrainingOptions(max_sequences=20)


def create(path: Path) -> NetworkStore:
    return NetworkStore.create(path, Manifest(specification=Specification()), EverPos())


def files(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*")}


def test_a_token_tells_a_folder_from_others(tmp_path: Path) -> None:
    path = tmp_path / "net"
    create(path)
    copied = shutil.copytree(path, tmp_path / "copy")
    with locked(path) as held:
        token = held.mark()
        require_place(token)
        with locked(copied) as other:
            assert inspect_folder(str(copied)).problem(token).startswith("sees another folder")
            assert other.mark().token != token.token
            assert inspect_folder(str(copied)).problem(token).startswith("sees another folder")
        assert inspect_folder(str(tmp_path / "none")).problem(token).startswith("sees no folder")
        # A copy that was made meanwhile has the token of then, and none that follows.
        later = shutil.copytree(path, tmp_path / "later")
        for _ in range(100):
            newer = held.mark()
        assert inspect_folder(str(later)).problem(newer).startswith("sees another folder")
        require_place(token)
        require_place(newer)
        # Another process that asks for the lock does not take the token away.
        with pytest.raises(StoreWriteError, match="another process"), locked(path):
            pass
        require_place(token)
    with pytest.raises(StoreUnsharedError, match="another folder"):
        require_place(token)
    assert (path / LOCK_FILE).read_bytes() == b""


def locked_in(held: WriteLock) -> None:
    """Fail while a lock is held."""
    held.mark()
    raise OptionError("another")


def test_a_lock_on_what_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b" / "net") as held:
        assert held.mark().token in inspect_folder(str(held.path)).tokens
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="another"), locked(tmp_path / "a" / "net") as held:
        locked_in(held)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with locked(tmp_path / "mine"):
        pass
    assert files(tmp_path) == {"mine": (tmp_path / "mine").stat().st_size}
    (tmp_path / "mine" / "letter").write_text("mine")
    with pytest.raises(StoreExistsError), locked(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine" / "letter").read_text() == "mine"


def test_files_of_a_killed_attempt_are_no_network_and_do_not_block_another(tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.mkdir()
    (path / LOCK_FILE).write_text("a token")
    assert open_store(path) is None
    (path / UNFINISHED).mkdir()
    (path / "snapshots").mkdir()
    assert open_store(path) is None
    create(path)
    assert open_store(path) is not None
    assert not (path / UNFINISHED).exists()
    with pytest.raises(StoreExistsError, match="network already"):
        create(path)


def test_a_task_without_the_token_writes_nothing(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), tmp_path / "net", client=client, options=SHORT)
    store = NetworkStore(network.path)
    packed = pack_run(RegionRun(Run.empty(), Run.empty()))
    with store.lock():
        fork = store.fork(store.begin())
        write_run(fork, "again", packed)
    before = files(network.path)
    with pytest.raises(StoreUnsharedError, match="another folder"):
        write_run(fork, "late", packed)
    assert files(network.path) == before
    moved = network.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnsharedError, match="no folder"):
        write_run(fork, "late", packed)
    assert list(tmp_path.iterdir()) == [moved]


def test_a_path_is_absolute_from_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def leave(event: Event) -> None:
        os.chdir(tmp_path / "there")

    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), "net", client=client, options=SHORT, observer=leave)
        monkeypatch.chdir(tmp_path / "here")
        corpus = gd.encode(sample_test_text(), "corpus", client=client, observer=leave)
        again = network.evaluate("corpus" if Path("corpus").exists() else corpus.path, client=client)
    assert again.inferred
    assert network.path == tmp_path / "here" / "net"
    assert corpus.path == tmp_path / "here" / "corpus"
    assert list((tmp_path / "there").iterdir()) == []
    (tmp_path / "link").symlink_to(network.path)
    assert gd.Network(tmp_path / "link").path == network.path
    assert absolute_place("s3://bucket/net") == ObjectPath("s3://bucket/net")
    with pytest.raises(OptionError, match="leads nowhere"):
        gd.Network("a\0b")


@pytest.mark.parametrize("what", ["train", "create"])
def test_of_three_threads_that_make_one_network_one_does(tmp_path: Path, what: str) -> None:
    path, outcomes = tmp_path / "net", []
    together = threading.Barrier(3)

    def attempt(make: Callable[[], object]) -> None:
        together.wait(30)
        try:
            outcomes.append(make())
        except BaseException as error:
            outcomes.append(error)

    with gd.connect(workers=0) as client:
        makes: dict[str, Callable[[], object]] = {
            "train": lambda: gd.train(sample_text(), path, client=client, options=SHORT).commit,
            "create": lambda: create(path).path,
        }
        threads = [threading.Thread(target=attempt, args=(makes[what],)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # One that comes late finds the network, and that it holds all of the text already.
        made = {outcome for outcome in outcomes if not isinstance(outcome, BaseException)}
        assert len(made) == 1
        assert all(isinstance(error, (StoreWriteError, StoreExistsError)) for error in errors), errors
        assert len(outcomes) == 3
    assert made <= {path, NetworkStore(path).head()}


# A worker in a mount namespace of its own, where another file system lies over a folder, with a copy of what was there.
# What lies there before and after the worker is written to two files.
PRIVATE = """
set -e
mount --make-rprivate /
cp -a {folder} {copy}
mount -t tmpfs tmpfs {folder}
cp -a {copy}/. {folder}
rm -r {copy}
find {folder} -exec stat -c '%n %s' {{}} + > {outside}/before
{worker} || true
find {folder} -exec stat -c '%n %s' {{}} + > {outside}/after
"""


@contextmanager
def private_worker(address: str, folder: Path, outside: Path) -> Iterator[None]:
    """Start a worker to which a folder is another one than to this process, and check that it changes nothing there."""
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    worker += ["--death-timeout", "60", "--local-directory", str(outside), "--no-nanny"]
    script = PRIVATE.format(
        folder=shlex.quote(str(folder)),
        copy=shlex.quote(str(outside / "copy")),
        outside=shlex.quote(str(outside)),
        worker=shlex.join(worker),
    )
    with (outside / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script], stdout=log, stderr=log, cwd=outside, start_new_session=True
        )
    try:
        yield
        # The worker has been retired.
        process.wait(60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    assert (outside / "after").read_text() == (outside / "before").read_text()


@pytest.fixture(scope="module")
def unshared() -> None:
    """Skip where this user may not make mount namespaces."""
    command = ["unshare", "-m", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a mount namespace (unshare -m) and to mount a file system in it")


@pytest.fixture
def cluster(unshared: None) -> Iterator[Client]:
    """A worker in this process, at an address that others can join."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
        ) as local,
        Client(local) as client,
    ):
        yield client


def other_worker(client: Client) -> str:
    """Wait until there are two workers, and return the address of the one in another process."""
    client.wait_for_workers(2, timeout=90)
    return next(address for address, process in client.run(os.getpid).items() if process != os.getpid())


@pytest.mark.cluster
def test_workers_with_another_folder_are_reported_before_any_task(
    cluster: Client, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, outside = tmp_path / "shared", tmp_path_factory.mktemp("outside")
    network = gd.train(sample_text(), folder / "copied", client=cluster, options=SHORT)
    exported = network.export(tmp_path / "before.npz").connections.read_bytes()
    text = tmp_path / "text.txt"
    text.write_text(Path(sample_test_text()).read_text())
    address = cluster.scheduler.address
    before = files(folder)
    with private_worker(address, folder, outside):
        blind = other_worker(cluster)
        for name, seen in (("new/net", "no folder"), ("copied", "another folder")):
            capsys.readouterr()
            code = run(["train", str(text), "--network", str(folder / name), "--scheduler", address])
            (line,) = capsys.readouterr().err.splitlines()
            assert code == 2
            assert f"worker {blind} on host {os.uname().nodename} sees {seen} at {folder / name}" in line
            assert "file system that all of them share" in line
        run(["doctor", "--network", str(network.path), "--scheduler", address, "--json"])
        findings = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
        assert findings["network seen by workers"]["status"] == "bad"
        assert blind in findings["network seen by workers"]["found"]
        # Reading a copy does no harm; where there is none, the worker is named.
        assert cluster.submit(open_placement, str(network.path), network.commit, workers=[blind]).result(60)
        (folder / "later").mkdir()
        later = shutil.copytree(network.path, folder / "later" / "net")
        with pytest.raises(StoreUnsharedError, match=rf"worker {blind} .*no network at {later}"):
            cluster.submit(open_placement, str(later), network.commit, workers=[blind]).result(60)
        shutil.rmtree(folder / "later")
        cluster.retire_workers([blind])
    assert files(folder) == before
    assert network.export(tmp_path / "after.npz").connections.read_bytes() == exported


@pytest.mark.cluster
def test_a_worker_that_joins_later_with_another_folder_is_retired(
    cluster: Client, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder, outside = tmp_path / "shared", tmp_path_factory.mktemp("outside")
    folder.mkdir()
    options = gd.TrainingOptions(batch_sequences=20, block_characters=2_000, rounds_in_flight=1)
    small = gd.TextOptions(reading=ReadOptions(part_characters=2_000))
    expected = gd.train(sample_text(), tmp_path / "expected", client=cluster, options=options, text=small)
    joined: list[str] = []
    with ExitStack() as resources:

        def join(event: Event) -> None:
            if isinstance(event, RoundIntegrated) and not joined:
                resources.enter_context(private_worker(cluster.scheduler.address, folder, outside))
                joined.append(other_worker(cluster))

        network = gd.train(sample_text(), folder / "net", client=cluster, options=options, text=small, observer=join)
        assert len(cluster.scheduler_info()["workers"]) == 1
    assert f"retired from the cluster: worker {joined[0]} " in caplog.text
    exports = [each.export(tmp_path / f"{each.path.name}.npz").connections for each in (expected, network)]
    assert exports[0].read_bytes() == exports[1].read_bytes()
