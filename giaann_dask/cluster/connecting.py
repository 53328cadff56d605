"""Connect to a running Dask scheduler, or start a cluster on this machine.

Workers started here belong to a `LocalCluster`. Where there are CUDA devices and dask-cuda, they belong to a
`LocalCUDACluster` that has processor's workers beside a worker for each device; `start_cluster` starts workers with
separate roles (see `roles`).

The versions of a client are compared with those of the scheduler and the workers before anything is sent to them. Dask
asks for them itself, so a scheduler or worker without this package answers, too.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from distributed import Client, Scheduler, Security, SpecCluster, TimeoutError, Worker
from distributed.versions import VersionMismatchWarning

from giaann_dask.cluster.cluster_options import MOST_WORKERS, ClusterOptions
from giaann_dask.cluster.compilation import load_on_scheduler
from giaann_dask.cluster.devices import describe_machine, read_speeds
from giaann_dask.cluster.fork_server import begin_fork_server, environment_of_workers, forks
from giaann_dask.cluster.memory_budget import worker_allocator
from giaann_dask.cluster.resilience import (
    RestartingNanny,
    SpawningNanny,
    scheduler_arguments,
    set_defaults,
    survive_losses,
)
from giaann_dask.cluster.roles import BOTH_ROLES, COMPUTE, GPU, STORAGE
from giaann_dask.cluster.waiting import timeout_s
from giaann_dask.dask_types import register
from giaann_dask.device import count_devices, finds_cuda
from giaann_dask.errors import (
    ClusterError,
    GiaannError,
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
    OptionError,
    require_option,
)
from giaann_dask.keywords import names_keywords
from giaann_dask.lazy import announce_compiling, import_optional
from giaann_dask.library_internals import call_within, imports_main
from giaann_dask.local_files import local_path, read_utf8

_LOG = logging.getLogger(__name__)
PRELOAD = ("giaann_dask.worker_setup",)
# HTTP servers of schedulers and workers listen here unless a dashboard is configured: any port, local only.
_ANY_LOCAL = "127.0.0.1:0"
# What client, scheduler and workers send each other depends on these.
_SAME = ("giaann_dask", "python", "dask", "distributed")
_SIMILAR = ("numpy", "cloudpickle")
_NAMED = 3
_compared: WeakSet[Client] = WeakSet()


def connect(
    scheduler: str | None = None,
    *,
    workers: int | None = None,
    options: ClusterOptions | None = None,
    same_versions: bool = True,
    security: Security | None = None,
) -> Client:
    """Connect to a Dask cluster, starting one on this machine when no scheduler is named.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Worker processes to start.
    options : ClusterOptions, optional
        All options, instead of the two above.
    same_versions : bool
        Whether a running cluster must have the versions of this process (`giaann_dask.cluster.connecting`).
    security : Security, optional
        Certificates for a running cluster, such as those of another client; by default those of Dask's configuration.

    Returns
    -------
    distributed.Client
        Closing it, or leaving its ``with`` block, also stops the workers that were started.

    Raises
    ------
    ClusterError
        If the scheduler does not respond in time, has other versions, or no cluster can be started here.
    InputMissingError, InputFormatError
        If the scheduler file does not exist, or names no address.

    Examples
    --------
    >>> with connect(workers=0) as client:
    ...     client.submit(sum, [1, 2]).result()
    3
    """
    chosen = options or ClusterOptions(scheduler=scheduler, workers=workers)
    register()
    if chosen.scheduler is not None or chosen.scheduler_file is not None:
        return _join(chosen, security, same_versions=same_versions)
    _require_device(chosen)
    if chosen.workers != 0:
        announce_compiling()
    cuda = wants_cuda(chosen)
    kept = worker_allocator(chosen.memory_bytes, (chosen.workers or _default_workers()) + cuda * count_devices())
    with warnings.catch_warnings(), kept, _starting():
        # A dashboard port that is in use is logged below.
        warnings.simplefilter("ignore")
        if cuda:
            client: Client = OwningClient(_cuda_cluster(chosen))
        else:
            client = Client(**_local_arguments(chosen))
    _log_cluster("started", client)
    _warn_of_other_port(client, chosen)
    return client


def prepare(options: ClusterOptions) -> None:
    """Start the fork server of the workers in the background, so that `connect` with the same options waits less.

    Parameters
    ----------
    options : ClusterOptions
        Options of the later `connect`; nothing is done where it joins a scheduler or runs workers in this process.

    Raises
    ------
    OptionError
        If this machine does not have the requested device.
    """
    elsewhere = options.scheduler is not None or options.scheduler_file is not None
    set_defaults()
    if not elsewhere:
        _require_device(options)
    if not (elsewhere or options.workers == 0) and forks():
        with worker_allocator(options.memory_bytes, options.workers or _default_workers()):
            begin_fork_server(environment_of_workers())


def _require_device(options: ClusterOptions) -> None:
    """Raise an `OptionError` when CUDA is requested and this machine has none; also for ``workers=0``."""
    if options.device == "cuda":
        finds_cuda(options.device)


def wants_cuda(options: ClusterOptions) -> bool:
    """Return whether to start a worker for each GPU, beside those of the processor.

    Raises
    ------
    OptionError
        If CUDA is requested and there is no CUDA device.
    MissingDependencyError
        If CUDA is requested and dask-cuda or RMM is not installed.
    """
    if options.workers == 0 or not finds_cuda(options.device):
        return False
    if options.device == "auto" and not _devices_gain():
        return False
    for name in ("dask_cuda", "rmm"):
        try:
            import_optional(name, "cuda")
        except MissingDependencyError:
            if options.device == "cuda":
                raise
            _LOG.warning("there is a CUDA device, but not the extra cuda; starting CPU workers only")
            return False
    return True


def _devices_gain() -> bool:
    """Return whether a stage has been found to be quicker on this machine's devices, or has not been measured."""
    speeds = read_speeds(describe_machine())
    gain = not speeds or max(speeds.values()) >= 1
    if not gain:
        _LOG.info("no stage is faster on the GPU, by %s", speeds)
    return gain


def _cuda_cluster(options: ClusterOptions) -> SpecCluster:
    """Start a worker for each GPU, with a pool of device memory, which PyTorch uses, too, and processor's workers."""
    devices, others = count_devices(), options.workers or _default_workers()
    arguments: dict[str, Any] = {
        # Each has its share of the machine's memory.
        "n_workers": devices + others,
        "threads_per_worker": options.threads,
        "protocol": _require_protocol(options),
        "device_memory_limit": 0.8,
        "rmm_pool_size": 0.5,
        "rmm_allocator_external_lib_list": ["torch"],
        "resources": {GPU: 1},
        "dashboard_address": options.dashboard or _ANY_LOCAL,
        "worker_dashboard_address": _ANY_LOCAL,
        "worker_class": SpawningNanny,
        "preload": list(PRELOAD),
        "scheduler_kwargs": _scheduler_arguments(options),
        "silence_logs": logging.CRITICAL,
    }
    if options.memory_bytes is not None:
        arguments["memory_limit"] = options.memory_bytes
    _refuse_while_importing()
    return _with_processors(import_optional("dask_cuda", "cuda").LocalCUDACluster)(**arguments)


def _with_processors(cluster: type[SpecCluster]) -> type[SpecCluster]:
    """Return dask-cuda's class of clusters, whose further workers, after one for each device, are the processor's."""

    class DeviceCluster(cluster):  # type: ignore[misc]
        """Cluster of a worker for each device and of processor's workers."""

        def new_worker_spec(self) -> dict[str | int, dict[str, Any]]:
            """Return how the next worker is started, by its name."""
            if set(self.cuda_visible_devices) - set(self.worker_spec):
                found = super().new_worker_spec()
                for spec in found.values():
                    # Results of tasks are never on the device: Dask's own store spills them, and reports how much.
                    spec["options"].pop("data", None)
                return dict(found)
            options = {**self.new_spec["options"], "resources": BOTH_ROLES, "preload": list(PRELOAD)}
            options.pop("preload_argv", None)
            name = f"processor-{len(self.worker_spec) - len(self.cuda_visible_devices)}"
            return {name: {"cls": PlainNanny, "options": options}}

    return DeviceCluster


class OwningClient(Client):  # type: ignore[misc]
    """Client that stops its cluster when it is closed, like a `Client` that has started the cluster itself."""

    def close(self, *arguments: Any, **options: Any) -> Any:
        """Close the client, then the cluster."""
        cluster, closed = self.cluster, super().close(*arguments, **options)
        if cluster is not None:
            cluster.close()
        return closed


class JoiningClient(Client):  # type: ignore[misc]
    """Client that leaves no event loop and no thread behind where no scheduler answers."""

    def start(self, **options: Any) -> None:
        """Connect, or close the client and stop its loop, which Dask would not."""
        try:
            super().start(**options)
        except BaseException:
            self.close()
            self._loop_runner.stop()
            raise


# What users are shown of it.
JoiningClient.__name__ = Client.__name__


class PlainWorker(Worker):  # type: ignore[misc]
    """Worker in this process without pages, for which it would import Bokeh."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "dashboard": False})


class PlainNanny(RestartingNanny):
    """Nanny of such a worker in a process of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "dashboard": False})


def _local_arguments(options: ClusterOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "n_workers": _default_workers() if options.workers is None else max(options.workers, 1),
        "threads_per_worker": options.threads,
        "processes": options.workers != 0,
        "resources": {**BOTH_ROLES, GPU: 1} if options.workers == 0 and finds_cuda(options.device) else BOTH_ROLES,
        # Without a dashboard, the scheduler's HTTP server has only the metrics; it listens locally, on any port.
        "dashboard_address": options.dashboard or _ANY_LOCAL,
        # The HTTP servers of workers show their tasks without authentication, so they listen locally, too.
        "worker_dashboard_address": _ANY_LOCAL,
        "silence_logs": logging.CRITICAL,
        "scheduler_kwargs": _scheduler_arguments(options),
    }
    if options.memory_bytes is not None:
        arguments["memory_limit"] = options.memory_bytes
    if not arguments["processes"]:
        arguments["worker_class"] = PlainWorker if options.dashboard is None else Worker
    else:
        _refuse_while_importing()
        arguments["preload"] = list(PRELOAD)
        arguments["worker_class"] = PlainNanny if options.dashboard is None else RestartingNanny
        if options.protocol == "ucx":
            arguments["protocol"] = _require_protocol(options)
    return arguments


def _require_protocol(options: ClusterOptions) -> str:
    """Return the network protocol; raises a `MissingDependencyError` where Dask would use UCX and cannot."""
    if options.protocol == "ucx":
        # Dask has no UCX of its own.
        import_optional("distributed_ucxx", "cuda")
    return options.protocol


def _scheduler_arguments(options: ClusterOptions) -> dict[str, Any]:
    """Return the arguments of a scheduler; its dashboard is loaded only if it is requested, which saves start time."""
    return {**scheduler_arguments(options.hang_timeout_s), "dashboard": options.dashboard is not None}


def _join(options: ClusterOptions, security: Security | None, *, same_versions: bool) -> Client:
    """Connect to the running cluster that options name."""
    if options.scheduler_file is not None and not local_path(options.scheduler_file).is_file():
        raise InputMissingError(
            f"there is no scheduler file {options.scheduler_file}",
            "the file that a running scheduler has written",
            "start one with: giaann-dask cluster --scheduler-file FILE, or dask scheduler --scheduler-file FILE",
        )
    address = options.scheduler if options.scheduler_file is None else _address(options.scheduler_file)
    try:
        with warnings.catch_warnings():
            # `require_versions` says the same in one line, where it matters.
            warnings.simplefilter("ignore", VersionMismatchWarning)
            client = JoiningClient(address, timeout=options.connect_timeout_s, security=security)
    except TypeError as error:
        if not str(address).startswith(("tls://", "wss://")):
            raise
        raise ClusterError(
            f"the address {address} needs certificates: {error}",
            "distributed.comm.tls with ca-file, and client.key and client.cert, in Dask's configuration",
            "write them into ~/.config/dask/distributed.yaml, or set DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on",
        ) from error
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no scheduler responds at {address}{_named_by(options)}",
            "the address of a running Dask scheduler",
            "check the address, or leave it out to start workers on this machine",
        ) from error
    if same_versions:
        try:
            require_versions(client)
        except ClusterError:
            client.close()
            raise
    _log_cluster("joined", client)
    return client


def _address(file: str) -> str:
    """Return the address that a scheduler has written to a file."""
    try:
        address = json.loads(read_utf8(local_path(file)))["address"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputFormatError(
            f"the scheduler file {file} names no address",
            "the JSON file that a running scheduler has written",
            "name that file, or the address of the scheduler",
        ) from error
    return str(address)


def _named_by(options: ClusterOptions) -> str:
    return "" if options.scheduler_file is None else f", which {options.scheduler_file} names"


def _log_cluster(event: str, client: Client) -> None:
    """Log which cluster is used."""
    if _LOG.isEnabledFor(logging.INFO):
        workers = client.scheduler_info(n_workers=-1)["workers"]
        threads = sum(worker["nthreads"] for worker in workers.values())
        address = client.scheduler.address
        _LOG.info("%s the cluster at %s: %s workers, %s threads", event, address, len(workers), threads)


def _warn_of_other_port(client: Client, options: ClusterOptions) -> None:
    """Log a warning with the port of the dashboard when the requested one was in use and Dask chose another."""
    wanted = int((options.dashboard or "0").rpartition(":")[2])
    found = client.cluster.scheduler_info["services"].get("dashboard", wanted)
    if wanted and found != wanted:
        _LOG.warning("port %s is taken; the dashboard is at port %s instead", wanted, found)


@contextmanager
def _starting() -> Iterator[None]:
    """Translate Dask's errors of a cluster that cannot start into a `ClusterError`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, GiaannError):
            raise
        cause = _first_cause(error)
        # With a number of the system: the address cannot be bound. Otherwise a worker died during its start.
        expected, remedy = (
            (
                "addresses and ports of this machine that are free",
                "choose another port or dashboard",
            )
            if isinstance(cause, OSError) and cause.errno is not None
            else ("workers that start", "run the same command again, with fewer workers where memory is short")
        )
        raise ClusterError(
            f"no cluster could be started here: {cause}", expected, remedy, names=("port", "dashboard")
        ) from error


def _first_cause(error: BaseException) -> BaseException:
    """Return the first cause of an error that says anything; Dask wraps errors of a start once or twice."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return next((cause for cause in reversed(causes) if str(cause)), error)


def _refuse_while_importing() -> None:
    """Refuse to start processes in a child of `multiprocessing` while it imports the main module of its parent.

    Python does not allow that. The workers that this package starts do not import the main module.

    Raises
    ------
    ClusterError
        If this process is such a child.
    """
    if imports_main():
        raise ClusterError(
            "workers are to be started by a process that multiprocessing has started, while it imports your script",
            'a script that starts processes under `if __name__ == "__main__":`',
            "put what the script does under that line",
        )


@names_keywords
def start_cluster(counts: Mapping[str, int], options: ClusterOptions, port: int = 0) -> SpecCluster:
    """Start a scheduler and workers with roles on this machine.

    Parameters
    ----------
    counts : mapping of str to int
        Number of ``storage`` and of ``compute`` workers.
    options : ClusterOptions
        Threads, memory limit, protocol and dashboard of each.
    port : int
        Port of the scheduler; any free one by default.

    Returns
    -------
    distributed.SpecCluster
        Closing it stops all of them.

    Raises
    ------
    OptionError
        If there is no worker of a role.
    ClusterError
        If it cannot be started, for example because the port is taken.
    """
    for role in (STORAGE, COMPUTE):
        if counts.get(role, 0) < 1:
            raise OptionError(
                f"{role} is {counts.get(role, 0)}", "1 or more", "every role needs a worker", names=(role,)
            )
        require_option(counts[role] <= MOST_WORKERS, role, counts[role], f"at most {MOST_WORKERS} on one machine")
    protocol = f"{_require_protocol(options)}://"
    nanny: dict[str, Any] = {
        "nthreads": options.threads,
        "preload": list(PRELOAD),
        "protocol": protocol,
        # Local only, like the scheduler.
        "host": "127.0.0.1",
        "dashboard_address": _ANY_LOCAL,
        # This process logs when workers join or leave.
        "silence_logs": logging.WARNING,
    }
    if options.memory_bytes is not None:
        nanny["memory_limit"] = options.memory_bytes
    workers = {
        f"{role}-{number}": {"cls": RestartingNanny, "options": {**nanny, "resources": {role: 1}}}
        for role, count in counts.items()
        for number in range(count)
    }
    scheduler = {
        "cls": Scheduler,
        "options": {
            **scheduler_arguments(options.hang_timeout_s),
            "protocol": protocol,
            "host": "127.0.0.1",
            "port": port,
            "dashboard": options.dashboard is not None,
            "dashboard_address": options.dashboard or _ANY_LOCAL,
        },
    }
    _refuse_while_importing()
    with worker_allocator(options.memory_bytes, len(workers)), _starting():
        cluster = SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL)
    _LOG.info("started a cluster at %s: %s", cluster.scheduler_address, ", ".join(workers))
    return cluster


def _default_workers() -> int:
    from dask.system import CPU_COUNT

    return max(1, min(4, int(CPU_COUNT)))


def require_versions(client: Client) -> None:
    """Check that scheduler and workers have this package and the versions of this process; once for each client.

    A scheduler that was started separately then gets the plugin of `giaann_dask.cluster.resilience`, and imports what
    a training sends it.

    Parameters
    ----------
    client : Client
        Connected to a cluster.

    Raises
    ------
    ClusterError
        If one has another version of this package, Python, dask or distributed, or does not answer in time.
    """
    if client in _compared or client.scheduler is None or client.scheduler.address.startswith("inproc:"):
        return
    compare_versions(client)
    survive_losses(client)
    load_on_scheduler(client)
    _compared.add(client)


def compare_versions(client: Client) -> None:
    """Check that scheduler and workers have this package and the versions of this process, and change nothing.

    Raises
    ------
    ClusterError
        As `require_versions`.
    """
    try:
        found: dict[str, Any] = call_within(timeout_s(), client, "get_versions", packages=["giaann_dask"])
    except OSError as error:
        raise ClusterError(
            "the cluster does not respond to a request for its versions",
            "a running scheduler and workers",
            "check their logs, or restart the cluster",
        ) from error
    ours = _packages(found["client"])
    others = {"the scheduler": _packages(found["scheduler"])}
    others |= {f"worker {address}": _packages(each) for address, each in sorted(found["workers"].items())}
    different = list(_differences(ours, others, _SAME))
    if different:
        more = f", and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
        raise ClusterError(
            "; ".join(different[:_NAMED]) + more,
            "the same versions on client, scheduler and workers",
            f"install giaann-dask {ours['giaann_dask']} and the versions of this process there, and restart them",
        )
    for difference in _differences(ours, others, _SIMILAR):
        _LOG.warning("%s", difference)


def _packages(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of an answer by package; those of Python without the last numbers."""
    packages = {name: str(version or "none") for name, version in answer.get("packages", {}).items()}
    packages["python"] = ".".join(packages.get("python", "none").split(".")[:2])
    return packages


def _differences(
    ours: Mapping[str, str], others: Mapping[str, Mapping[str, str]], names: tuple[str, ...]
) -> Iterator[str]:
    """Yield a description of every difference."""
    for place, versions in others.items():
        for name in names:
            if versions.get(name, "none") != ours.get(name, "none"):
                yield f"{place} has {name} {versions.get(name, 'none')}, not {ours.get(name, 'none')}"
