"""Slurm on imitated hosts: one controller and a daemon on each node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.hosts import Hosts, require_tools

_CONF = """ClusterName=giaann
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=general Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
# On a node, before its daemon: Slurm looks for a hierarchy of the freezer.
_NODE = (
    "umount -R /sys/fs/cgroup 2> /dev/null; mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer && "
    "mount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer && exec slurmd -D -N "
)


class Slurm:
    """Controller on the host ``head`` and nodes, which have more processors and memory than there are.

    Parameters
    ----------
    hosts : Hosts
        Hosts of both; their environment has ``SLURM_CONF``, the file ``slurm.conf`` in the folder.
    folder : Path
        Folder that all hosts see.
    nodes : sequence of str
        Names of hosts.
    """

    def __init__(self, hosts: Hosts, folder: Path, nodes: Sequence[str]) -> None:
        self._hosts, self._folder = hosts, folder
        for name in ("state", *(f"spool-{node}" for node in nodes)):
            (folder / name).mkdir()
        size = "CPUs=64 RealMemory=600000 State=UNKNOWN"
        lines = "\n".join(f"NodeName={node} NodeAddr={hosts.addresses[node]} {size}" for node in nodes)
        values = {"head": hosts.addresses["head"], "folder": folder, "nodes": lines, "names": ",".join(nodes)}
        (folder / "slurm.conf").write_text(_CONF.format(**values))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._munged: subprocess.Popen[bytes] | None = None
        if not Path("/run/munge/munge.socket.2").exists():
            self._munged = self._start_munge()
        hosts.launch("head", "slurmctld", "-D", log=folder / "slurmctld.out")
        for node in nodes:
            hosts.launch(node, "sh", "-c", _NODE + node, log=folder / f"slurmd-{node}.out")
        deadline = time.monotonic() + 60
        while self.run("sinfo -h -N -t idle -o %N | sort -u | wc -l")[1].strip() != str(len(nodes)):
            assert time.monotonic() < deadline, self.run("sinfo -N -l")[1]
            time.sleep(0.5)

    def run(self, command: str, seconds: float = 60) -> tuple[int, str]:
        """Run a shell command on the controller's host; return its exit code and what it wrote."""
        log = self._folder / "slurm-command.log"
        log.write_text("")
        code = self._hosts.launch("head", "sh", "-c", command, log=log).wait(seconds)
        return code, log.read_text()

    def close(self) -> None:
        """End all jobs, and the daemon of the keys where it was started here."""
        self.run("scancel --full --user root; sleep 1")
        if self._munged is not None:
            self._munged.terminate()
            self._munged.wait(30)

    def _start_munge(self) -> subprocess.Popen[bytes]:
        """Start the daemon that signs messages; all hosts see its socket."""
        for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
            Path(folder).mkdir(exist_ok=True)
            subprocess.run(["chown", "munge:munge", folder], check=True)
        Path("/run/munge").chmod(0o755)
        own = ["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups"]
        process = subprocess.Popen(
            [*own, "munged", "--foreground"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while not Path("/run/munge/munge.socket.2").exists():
            assert time.monotonic() < deadline, "munged did not start"
            time.sleep(0.1)
        return process


def require_slurm() -> None:
    """Skip a test without Slurm, its keys, or the kernel's hierarchy of the freezer."""
    require_tools("slurmctld", "slurmd", "sbatch", "munged", "setpriv", packages="slurm-wlm, munge, util-linux")
    if not Path("/etc/munge/munge.key").exists():
        pytest.skip("needs a key of munge (/etc/munge/munge.key)")
    if "freezer" not in Path("/proc/cgroups").read_text():
        pytest.skip("needs cgroup v1 with the freezer")
    if os.environ.get("SLURM_CONF"):
        pytest.skip("this machine belongs to a Slurm")
