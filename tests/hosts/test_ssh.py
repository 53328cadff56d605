"""Clusters over SSH: by hand, also encrypted, and Dask's `SSHCluster`; folders that hosts do not share."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts import Hosts, require_tools
from support.processes import until
from support.village import Undisturbed

import giaann_dask as gd

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.hosts]

SSH_CLUSTER = """
import os
import sys
from pathlib import Path

import asyncssh
from dask.distributed import SSHCluster
import giaann_dask as gd

text, folder, key, private, *hosts = sys.argv[1:]
cluster = SSHCluster(
    hosts,
    connect_options={"known_hosts": None, "client_keys": [key], "username": "root"},
    worker_options={"nthreads": 1, "local_directory": private},
    scheduler_options={"port": 8786, "dashboard_address": ":0"},
    remote_python=sys.executable,
)
with gd.connect(cluster.scheduler_address) as client:
    client.wait_for_workers(2, timeout=60)
    network = gd.train(text, Path(folder, "net"), client=client)
network.export(Path(folder, "exported.npz"))
# Without closing the cluster, as a process that is killed.
os._exit(7)
"""


class Shell:
    """Commands over SSH from the host "client", with the SSH servers of all hosts."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        require_tools("sshd", "ssh", "ssh-keygen", packages="openssh-server, openssh-client")
        self._hosts, self._folder = hosts, folder
        self._config = hosts.start_sshd(folder)

    def run(self, host: str, command: str, seconds: float = 200) -> tuple[int, str]:
        """Run a command on a host; return its exit code and what it wrote."""
        log = self._folder / "command.log"
        log.write_text("")
        code = self._hosts.launch("client", "ssh", "-F", str(self._config), host, command, log=log).wait(seconds)
        return code, log.read_text()

    def begin(self, host: str, command: str, log: Path) -> None:
        """Start a command on a host that goes on when the session ends."""
        code, said = self.run(host, f"nohup {command} > {log} 2>&1 < /dev/null &")
        assert code == 0, said

    def start_cluster(self, private: Path, protocol: str = "tcp") -> Path:
        """Start a scheduler and two workers by hand; return the scheduler file."""
        file, dask = self._folder / "scheduler.json", f"{sys.executable} -m dask"
        common = f"--scheduler-file {file} --protocol {protocol}"
        self.begin("head", f"{dask} scheduler {common} --dashboard-address :0", self._folder / "scheduler.log")
        until(file.exists)
        for host in ("n1", "n2"):
            options = f"{common} --nthreads 1 --local-directory {private}"
            self.begin(host, f"{dask} worker {options}", self._folder / f"{host}.log")
        return file


def make_certificates(folder: Path) -> dict[str, str]:
    """Make an authority and a certificate; return the variables with which Dask uses them."""
    require_tools("openssl", packages="openssl")
    names = {name: str(folder / name) for name in ("ca.pem", "ca.key", "own.pem", "own.key", "own.csr")}
    new, common = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"], {"check": True, "capture_output": True}
    subprocess.run(
        [*new, "-x509", "-subj", "/CN=authority", "-keyout", names["ca.key"], "-out", names["ca.pem"]], **common
    )
    subprocess.run([*new, "-subj", "/CN=cluster", "-keyout", names["own.key"], "-out", names["own.csr"]], **common)
    sign = ["openssl", "x509", "-req", "-in", names["own.csr"], "-CA", names["ca.pem"], "-CAkey", names["ca.key"]]
    subprocess.run([*sign, "-CAcreateserial", "-out", names["own.pem"]], **common)
    prefix = "DASK_DISTRIBUTED__COMM__"
    files = {
        f"{prefix}TLS__{role}__{kind.upper()}": names[f"own.{file}"]
        for role in ("SCHEDULER", "WORKER", "CLIENT")
        for kind, file in (("cert", "pem"), ("key", "key"))
    }
    return {**files, f"{prefix}TLS__CA_FILE": names["ca.pem"], f"{prefix}REQUIRE_ENCRYPTION": "true"}


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
def test_a_cluster_that_is_started_by_hand(
    make_hosts: Callable[..., Hosts], private: Path, tmp_path: Path, undisturbed: Undisturbed, protocol: str
) -> None:
    hosts = make_hosts(**(make_certificates(tmp_path) if protocol == "tls" else {}))
    shell = Shell(hosts, tmp_path)
    file = shell.start_cluster(private, protocol)
    ours, network = f"{sys.executable} -m giaann_dask", tmp_path / "net"
    code, said = shell.run("client", f"{ours} train {undisturbed.text} --network {network} --scheduler-file {file}")
    assert code == 0, said
    assert gd.Network(network).export(tmp_path / "made").connections.read_bytes() == undisturbed.exported
    assert f"{protocol}://{hosts.addresses['head']}" in file.read_text()
    code, said = shell.run("client", f"{ours} cluster stop --scheduler-file {file}")
    assert code == 0, said
    until(lambda: "End scheduler" in (tmp_path / "scheduler.log").read_text())


def test_a_cluster_whose_client_dies_is_stopped_from_elsewhere(
    make_hosts: Callable[..., Hosts], private: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    pytest.importorskip("asyncssh", reason="needs asyncssh")
    hosts = make_hosts()
    shell = Shell(hosts, tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SSH_CLUSTER)
    addresses = " ".join(hosts.addresses[name] for name in ("head", "n1", "n2"))
    code, said = shell.run(
        "client", f"{sys.executable} {script} {undisturbed.text} {tmp_path} {tmp_path / 'user'} {private} {addresses}"
    )
    assert code == 7, said
    assert (tmp_path / "exported.npz").read_bytes() == undisturbed.exported
    stop = f"{sys.executable} -m giaann_dask cluster stop --scheduler tcp://{hosts.addresses['head']}:8786"
    code, said = shell.run("n3", stop)
    assert code == 0, said
    code, said = shell.run("n3", stop)
    assert code == 2, f"nobody listens there any more: {said}"


def test_folders_that_hosts_do_not_share_are_refused(
    make_hosts: Callable[..., Hosts], private: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A folder that is empty elsewhere, and copies of one network, which have the same content."""
    hosts = make_hosts()
    shell = Shell(hosts, tmp_path)
    file = shell.start_cluster(private)
    small = tmp_path / "small.txt"
    small.write_text("\n".join(undisturbed.text.read_text().splitlines()[:300]))
    ours = f"{sys.executable} -m giaann_dask train {small} --scheduler-file {file}"
    code, said = shell.run("client", f"{ours} --network {private}/net")
    assert code == 2, said
    assert "on host n" in said, "the worker that does not see it is named"
    with gd.connect(workers=0) as client:
        gd.train(small, tmp_path / "net", client=client, options=gd.TrainingOptions(max_sequences=100))
    for host in ("client", "n1", "n2"):
        assert shell.run(host, f"cp -r {tmp_path}/net {private}/copy")[0] == 0
    code, said = shell.run("client", f"{ours} --network {private}/copy")
    assert code == 2, said
    assert "on host n" in said
    for host in ("client", "n1", "n2"):
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        assert shell.run(host, f"cp -r {private}/copy {tmp_path}/kept")[0] == 0
        assert gd.Network(tmp_path / "kept").manifest.sequences == 100, "no copy was changed"
