"""Slurm on imitated hosts: dask-jobqueue that scales by itself, a job that is cancelled, and the guide's script."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts
from support.processes import until
from support.slurm import Slurm, require_slurm
from support.village import Undisturbed

import giaann_dask as gd

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.hosts]

ROOT = Path(__file__).parents[2]
ADAPTIVE = """
import subprocess
import sys
import time
from pathlib import Path

from dask_jobqueue import SLURMCluster
import giaann_dask as gd
from giaann_dask.events import Committed
from giaann_dask.text.read_options import ReadOptions

text, folder, private = sys.argv[1:]
seen = set()


def observe(event):
    seen.update(client.scheduler_info(n_workers=-1)["workers"])
    if isinstance(event, Committed) and not Path(folder, "cancelled").exists():
        job = subprocess.run(["squeue", "-h", "-t", "R", "-o", "%i"], capture_output=True, text=True).stdout.split()[0]
        subprocess.run(["scancel", job], check=True)
        Path(folder, "cancelled").write_text(job)


with SLURMCluster(
    queue="general", cores=1, processes=1, memory="4GiB", walltime="00:20:00", local_directory=private,
    log_directory=str(Path(folder, "logs")), python=sys.executable, interface="eth0",
    scheduler_options={"dashboard_address": "127.0.0.1:0"},
) as cluster:
    cluster.adapt(minimum_jobs=1, maximum_jobs=3, interval="1s")
    with gd.connect(cluster.scheduler_address) as client:
        client.wait_for_workers(1, timeout=100)
        options = gd.TrainingOptions(commit_sequences=1500)
        small = gd.TextOptions(reading=ReadOptions(part_characters=30_000))
        network = gd.train(text, Path(folder, "net"), client=client, options=options, text=small, observer=observe)
network.export(Path(folder, "exported.npz"))
print("workers", len(seen), flush=True)
"""


@pytest.fixture
def slurm(make_hosts: Callable[..., Hosts], tmp_path: Path) -> Iterator[tuple[Hosts, Slurm]]:
    require_slurm()
    hosts = make_hosts(SLURM_CONF=str(tmp_path / "slurm.conf"))
    started = Slurm(hosts, tmp_path, ("n1", "n2", "n3"))
    yield hosts, started
    started.close()


def test_jobs_that_come_and_go(
    slurm: tuple[Hosts, Slurm], private: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue")
    hosts, _ = slurm
    log = tmp_path / "client.log"
    arguments = (str(undisturbed.text), str(tmp_path), str(private))
    assert hosts.start("head", "-c", ADAPTIVE, *arguments, log=log).wait(250) == 0, log.read_text()
    assert (tmp_path / "exported.npz").read_bytes() == undisturbed.exported
    assert (tmp_path / "cancelled").exists()
    assert int(re.findall(r"workers (\d+)", log.read_text())[0]) > 1, "more came as there was more to do"


def test_the_script_of_the_guide(slurm: tuple[Hosts, Slurm], tmp_path: Path, undisturbed: Undisturbed) -> None:
    """As it is it is accepted; with fewer and smaller workers it trains."""
    _, started = slurm
    page = (ROOT / "docs" / "how-to" / "slurm.md").read_text()
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    whole, small = tmp_path / "giaann.sbatch", tmp_path / "small.sbatch"
    whole.write_text(script)
    code, said = started.run(f"sbatch --hold {whole}")
    assert code == 0, said
    assert "Submitted batch job" in said
    started.run(f"scancel {said.split()[-1]}")
    for old, new in (
        ("/shared/giaann/.venv", sys.prefix),
        ("/shared/books", str(undisturbed.text)),
        ("/shared", str(tmp_path)),
        ("ib0", "eth0"),
        ("--ntasks=4 ", "--ntasks=1 "),
        ("--ntasks=16 ", "--ntasks=2 "),
        ("55GiB", "4GiB"),
        ("3.5GiB", "4GiB"),
    ):
        assert old in script
        script = script.replace(old, new)
    small.write_text(script)
    log = tmp_path / "job.log"
    code, said = started.run(f"sbatch --output={log} {small}")
    assert code == 0, said
    job = said.split()[-1]
    until(lambda: log.exists() and not started.run(f"squeue -h -j {job}")[1].strip(), 250)
    assert (tmp_path / "library").exists(), log.read_text()
    exported = gd.Network(tmp_path / "library").export(tmp_path / "made").connections.read_bytes()
    assert exported == undisturbed.exported, log.read_text()
