"""Training over several hosts that share no folder; the network is in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, require_namespaces
from support.processes import until
from support.village import Undisturbed

NAMES = ("head", "n1", "n2", "n3", "client")
TRAIN = """
import sys
from pathlib import Path
import giaann_dask as gd
from giaann_dask.events import Committed
from giaann_dask.text.reading import ReadOptions

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
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    pytest.importorskip("moto.server", reason="needs moto's server")
    pytest.importorskip("obstore", reason="needs obstore")
    require_namespaces()
    private = tmp_path / "private"
    private.mkdir()
    environment = {
        "AWS_ENDPOINT_URL": "http://10.79.0.1:5555",
        "AWS_ACCESS_KEY_ID": "alice",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        # Else the loss of a host is noticed after five minutes.
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    }
    made = Hosts(NAMES, private, environment)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.cluster
def test_a_network_in_a_bucket_survives_the_loss_of_a_host(
    hosts: Hosts, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    head = hosts.addresses["head"]
    serve = "from moto.server import main; main(['-H', '0.0.0.0', '-p', '5555'])"
    hosts.start("head", "-c", serve, log=tmp_path / "moto.log")
    hosts.start("head", "-m", "dask", "scheduler", "--port", "8786", log=tmp_path / "scheduler.log")
    for name in NAMES[1:4]:
        hosts.start(name, "-m", "dask", "worker", f"{head}:8786", "--nthreads", "1", log=tmp_path / f"{name}.log")
    make = (
        "import time, urllib.request as u\n"
        "for _ in range(200):\n"
        "    try:\n"
        f"        u.urlopen(u.Request('http://{head}:5555/bucket', method='PUT'))\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
    )
    assert hosts.start("client", "-c", make, log=tmp_path / "make.log").wait(60) == 0
    arguments = (str(undisturbed.text), "s3://bucket/village", f"tcp://{head}:8786", str(tmp_path))
    training = hosts.start("client", "-c", TRAIN, *arguments, log=tmp_path / "client.log")
    until(lambda: (tmp_path / "committed").exists() or training.poll() is not None)
    assert training.poll() is None, (tmp_path / "client.log").read_text()
    hosts.kill("n2")
    assert training.wait(200) == 0, (tmp_path / "client.log").read_text()
    assert (tmp_path / "exported.npz").read_bytes() == undisturbed.exported
