"""Training over several hosts: one is lost, a link is cut, another one joins."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts import Hosts
from support.processes import until
from support.village import Undisturbed

pytestmark = pytest.mark.hosts

WORKERS = ("n1", "n2", "n3")
TRAIN = """
import sys
from pathlib import Path
import giaann_dask as gd
from giaann_dask.events import Committed
from giaann_dask.text.read_options import ReadOptions

text, place, address, folder = sys.argv[1:]


def observe(event):
    if isinstance(event, Committed):
        Path(folder, "committed").touch()


options = gd.TrainingOptions(commit_sequences=1500)
small = gd.TextOptions(reading=ReadOptions(part_characters=30_000))
with gd.connect(options=gd.ClusterOptions(scheduler=address)) as client:
    network = gd.train(text, place, client=client, options=options, text=small, observer=observe)
network.export(Path(folder, "exported.npz"))
"""


@pytest.fixture
def hosts(make_hosts: Callable[..., Hosts]) -> Hosts:
    pytest.importorskip("moto.server", reason="needs moto's server")
    pytest.importorskip("obstore", reason="needs obstore")
    return make_hosts(
        AWS_ENDPOINT_URL="http://10.79.0.1:5555",
        AWS_ACCESS_KEY_ID="alice",
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_REGION="us-east-1",
    )


@pytest.mark.cluster
def test_a_network_in_a_bucket_survives_the_loss_of_a_host(
    hosts: Hosts, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    head = hosts.addresses["head"]
    serve = "from moto.server import main; main(['-H', '0.0.0.0', '-p', '5555'])"
    hosts.start("head", "-c", serve, log=tmp_path / "moto.log")
    # Without nannies, which end with their host, and without pages.
    scheduler = ("scheduler", "--port", "8786", "--no-dashboard")
    hosts.start("head", "-m", "dask", *scheduler, log=tmp_path / "scheduler.log")
    options = (f"{head}:8786", "--nthreads", "1", "--no-nanny", "--no-dashboard")
    for name in WORKERS:
        hosts.start(name, "-m", "dask", "worker", *options, log=tmp_path / f"{name}.log")
    make = (
        "import time, urllib.request as u\n"
        "while True:\n"
        "    try:\n"
        f"        u.urlopen(u.Request('http://{head}:5555/bucket', method='PUT'))\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
    )
    assert hosts.start("client", "-c", make, log=tmp_path / "make.log").wait(200) == 0
    arguments = (str(undisturbed.text), "s3://bucket/village", f"tcp://{head}:8786", str(tmp_path))
    training = hosts.start("client", "-c", TRAIN, *arguments, log=tmp_path / "client.log")
    until(lambda: (tmp_path / "committed").exists() or training.poll() is not None)
    assert training.poll() is None, (tmp_path / "client.log").read_text()
    hosts.kill("n2")
    assert training.wait(200) == 0, (tmp_path / "client.log").read_text()
    assert (tmp_path / "exported.npz").read_bytes() == undisturbed.exported


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cut_link_and_a_host_that_joins_change_nothing(
    make_hosts: Callable[..., Hosts], private: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The link of one host is cut for a moment, that of another one for good; a third host joins."""
    hosts = make_hosts()
    address = f"{hosts.addresses['head']}:8786"
    hosts.start("head", "-m", "dask", "scheduler", "--port", "8786", log=tmp_path / "scheduler.log")

    def join(name: str) -> None:
        options = ("--nthreads", "1", "--local-directory", str(private))
        hosts.start(name, "-m", "dask", "worker", address, *options, log=tmp_path / f"{name}.log")

    join("n1")
    join("n2")
    arguments = (str(undisturbed.text), str(tmp_path / "net"), f"tcp://{address}", str(tmp_path))
    training = hosts.start("client", "-c", TRAIN, *arguments, log=tmp_path / "client.log")
    until(lambda: (tmp_path / "committed").exists() or training.poll() is not None)
    assert training.poll() is None, (tmp_path / "client.log").read_text()
    hosts.cut("n2")
    time.sleep(3)
    hosts.mend("n2")
    hosts.cut("n1")
    join("n3")
    assert training.wait(250) == 0, (tmp_path / "client.log").read_text()
    assert (tmp_path / "exported.npz").read_bytes() == undisturbed.exported
    assert "Starting established connection" in (tmp_path / "n3.log").read_text()


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_with_the_preload_send_fewer_bytes_to_other_hosts(
    make_hosts: Callable[..., Hosts], private: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    sent: dict[bool, int] = {}
    for preload in (True, False):
        hosts, folder = make_hosts(), tmp_path / f"preload-{preload}"
        folder.mkdir()
        address = f"{hosts.addresses['head']}:8786"
        hosts.start("head", "-m", "dask", "scheduler", "--port", "8786", log=folder / "scheduler.log")
        options = ("--nthreads", "1", "--local-directory", str(private))
        options += ("--preload", "giaann_dask.worker_setup") if preload else ()
        for name in ("n1", "n2"):
            hosts.start(name, "-m", "dask", "worker", address, *options, log=folder / f"{name}.log")
        arguments = (str(undisturbed.text), str(folder / "net"), f"tcp://{address}", str(folder))
        training = hosts.start("client", "-c", TRAIN, *arguments, log=folder / "client.log")
        assert training.wait(250) == 0, (folder / "client.log").read_text()
        assert (folder / "exported.npz").read_bytes() == undisturbed.exported
        sent[preload] = hosts.sent_bytes("n1") + hosts.sent_bytes("n2")
        hosts.close()
    assert sent[True] < 0.7 * sent[False]
