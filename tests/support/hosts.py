"""Hosts with a network, a name, processes and a temporary folder of their own, made of Linux namespaces (as root)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

# What a process of a host runs before its command: it gets mounts of its own, and a private folder for temporary files.
_ENTER = 'mount --make-rprivate / && mount -t tmpfs tmpfs "$0" && hostname "$1" && shift && exec "$@"'


class Hosts:
    """Hosts that are joined by a bridge; `close` stops and removes them.

    Parameters
    ----------
    names : sequence of str
        Names of the hosts.
    private : Path
        Folder that is another one for each process that is started on them, and for what that starts: temporary files,
        homes and Dask's local folders.
    environment : dict of str to str
        Variables of all their processes, besides those of this process.
    """

    def __init__(self, names: Sequence[str], private: Path, environment: dict[str, str]) -> None:
        self._prefix = f"gd{os.getpid() % 100_000}"
        self._private = private
        self._own = {**environment, "TMPDIR": str(private), "HOME": str(private)}
        self._environment = {**os.environ, **self._own}
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {name: [] for name in names}
        self.addresses = {name: f"10.79.0.{number}" for number, name in enumerate(names, 1)}
        self._bridge = self._space("bridge")
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            space, link = self._space(name), f"{self._prefix}v{number}"
            _ip("netns", "add", space)
            _ip("link", "add", link, "netns", self._bridge, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._bridge, "link", "set", link, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            self.mend(name)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def start(self, name: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a Python command on a host: the arguments of the interpreter."""
        return self.launch(name, sys.executable, *command, log=log)

    def launch(self, name: str, *program: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a program on a host."""
        inside = ["sh", "-c", _ENTER, str(self._private), name, *program]
        outside = ["ip", "netns", "exec", self._space(name)]
        outside += ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", *inside]
        with log.open("ab") as output:
            process = subprocess.Popen(
                outside, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )
        self._processes[name].append(process)
        return process

    def start_sshd(self, folder: Path) -> Path:
        """Start an SSH server on every host, and return the configuration with which `ssh -F` reaches all of them.

        Sessions have the variables of the hosts' processes, and the private folder of the host's server.
        """
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        paths = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        variables = " ".join(f'"{name}={value}"' for name, value in {**paths, **self._own}.items())
        server = folder / "sshd_config"
        server.write_text(
            f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nMaxStartups 100\nSetEnv {variables}\n"
        )
        known = (folder / "host.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text("".join(f"{a} {' '.join(known)}\n" for a in self.addresses.values()))
        config = folder / "ssh_config"
        aliases = "".join(f"Host {name}\n    HostName {address}\n" for name, address in self.addresses.items())
        config.write_text(
            f"{aliases}Host *\n    User root\n    IdentityFile {folder / 'user'}\n    BatchMode yes\n"
            f"    UserKnownHostsFile {folder / 'known_hosts'}\n    ConnectionAttempts 40\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in self.addresses:
            self.launch(name, "/usr/sbin/sshd", "-D", "-e", "-f", str(server), log=folder / f"sshd-{name}.log")
        return config

    def cut(self, name: str) -> None:
        """Cut the link of a host; its processes go on."""
        _ip("-n", self._space(name), "link", "set", "eth0", "down")

    def mend(self, name: str) -> None:
        """Join a host with the others, for the first time or again."""
        _ip("-n", self._space(name), "link", "set", "eth0", "up")
        # Dask asks for the route to the internet to learn its own address.
        _ip("-n", self._space(name), "route", "add", "default", "via", "10.79.0.200")

    def sent_bytes(self, name: str) -> int:
        """Return the bytes that a host has sent over its link."""
        shown = subprocess.run(
            ["ip", "-json", "-stats", "-n", self._space(name), "link", "show", "eth0"], capture_output=True, check=True
        )
        return int(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])

    def kill(self, name: str) -> None:
        """Stop a host as a power cut does: its network first, so that nobody hears of the end of its processes."""
        self.cut(name)
        for process in self._processes[name]:
            process.kill()
            process.wait(30)

    def close(self) -> None:
        """Stop all processes and remove the hosts."""
        for name, processes in self._processes.items():
            for process in processes:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait(30)
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self._bridge], check=False, capture_output=True)


def require_tools(*tools: str, packages: str) -> None:
    """Skip a test where programs are missing, also such that are not in the path of users."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: {packages})")


def require_namespaces() -> None:
    """Skip a test where hosts cannot be made: not as root, without iproute2 or in a container without rights."""
    require_tools("ip", "unshare", "mount", packages="iproute2, util-linux, mount")
    name = f"gd{os.getpid() % 100_000}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    tried = subprocess.run(
        ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    if made.returncode or tried.returncode:
        pytest.skip("needs the right to make network, mount and process namespaces (root)")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
