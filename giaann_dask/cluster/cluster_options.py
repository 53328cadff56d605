"""Validate the options of a cluster, which describe machines and are never stored with a network.

`connecting` joins or starts a cluster with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from giaann_dask.device import DEVICE_NAMES, DeviceName
from giaann_dask.errors import OptionError, require_at_least, require_one_of, require_option
from giaann_dask.keywords import names_keywords

Protocol = Literal["tcp", "ucx"]
PROTOCOLS = ("tcp", "ucx")
# Worker processes that one command starts; an idle one takes about 270 MB.
MOST_WORKERS = 1024


@names_keywords
@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """A running scheduler to join, or workers to start on this machine.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, as ``tcp://host:8786`` or ``tls://host:8786``; certificates come from Dask's
        configuration.
    scheduler_file : str, optional
        Scheduler file, to which a running scheduler has written its address.
    workers : int, optional
        CPU worker processes to start without a scheduler; 0 runs everything in this process. By default one per
        processor, at most 4. GPU workers are started in addition.
    threads : int
        Threads of each worker.
    memory_limit : str, optional
        Memory of each worker, as ``4GiB``; its share of the machine by default.
    protocol : {"tcp", "ucx"}
        Network protocol of the started workers.
    device : {"auto", "cpu", "cuda"}
        Device of the dense computations. With CUDA devices and dask-cuda, a worker is started for each GPU, in addition
        to CPU workers.
    dashboard : str, optional
        Address of the dashboard, such as ``:8787``; none by default.
    connect_timeout_s : float
        Seconds to wait for a scheduler.
    hang_timeout_s : float, optional
        Seconds without a heartbeat after which a worker started here is killed and replaced; this takes at most twice
        that time and 5 seconds. The default is that of Dask's configuration (``distributed.scheduler.worker-ttl``, 120
        unless set).

    Raises
    ------
    OptionError
        If values contradict each other or are impossible.

    Examples
    --------
    >>> ClusterOptions(workers=2, memory_limit="2GiB").memory_bytes
    2147483648
    """

    scheduler: str | None = None
    scheduler_file: str | None = None
    workers: int | None = None
    threads: int = 1
    memory_limit: str | None = None
    protocol: Protocol = "tcp"
    device: DeviceName = "auto"
    dashboard: str | None = None
    connect_timeout_s: float = 15.0
    hang_timeout_s: float | None = None

    def __post_init__(self) -> None:
        named = {
            "scheduler": self.scheduler,
            "scheduler_file": self.scheduler_file,
            "workers": self.workers,
        }
        given = [f"{name} {value}" for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise OptionError(
                f"{' and '.join(given)} were given", "one of them", "leave the others out", names=tuple(named)
            )
        require_option(self.scheduler != "", "scheduler", "", "the address of a scheduler, as tcp://HOST:8786")
        require_at_least(0, self, "workers")
        require_option(
            self.workers is None or self.workers <= MOST_WORKERS,
            "workers",
            self.workers,
            f"at most {MOST_WORKERS} on one machine",
        )
        require_at_least(1, self, "threads")
        require_at_least(1, self, "hang_timeout_s")
        require_option(
            self.dashboard is None or re.fullmatch(r"(.*:)?\d{1,5}", self.dashboard) is not None,
            "dashboard",
            self.dashboard,
            "an address such as :8787",
        )
        for name, value, allowed in (
            ("protocol", self.protocol, PROTOCOLS),
            ("device", self.device, DEVICE_NAMES),
        ):
            require_one_of(name, value, allowed)
        # Reading the property checks the text.
        require_option(
            self.memory_bytes is None or self.memory_bytes >= 1 << 26,
            "memory_limit",
            self.memory_limit,
            "64MiB or more",
        )

    @property
    def distributes(self) -> bool:
        """Whether there is a scheduler to join, a worker process to start or a dashboard to serve."""
        return self.workers != 0 or self.dashboard is not None

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit of a worker in bytes, None for its share of the machine.

        Raises
        ------
        OptionError
            If the limit cannot be parsed as a size.
        """
        if self.memory_limit is None:
            return None
        try:
            from dask.utils import parse_bytes

            return int(parse_bytes(self.memory_limit))
        except ValueError as error:
            raise OptionError(
                f"memory_limit is {self.memory_limit!r}",
                "a size such as 4GiB",
                "set memory_limit to such a value",
            ) from error
