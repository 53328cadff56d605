"""Make deterministic task keys, find the current client, and wait for results with a timeout.

Dask's errors of lost schedulers and workers are translated here. Results that workers have are also fetched past the
scheduler (`fetch`), without making them dependencies of a task: Dask keeps the dependencies of a task in the memory of
its worker, all of them at once, and beyond its end where others need them. `connecting` connects to clusters. Nothing
of Dask is imported before it is used.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from giaann_dask.errors import ClusterError, GiaannError, LostPartsError, OptionError
from giaann_dask.lazy import LazyModule
from giaann_dask.library_internals import call_within, keep_result

if TYPE_CHECKING:
    import distributed
    from distributed import Client, Future, Worker
else:
    distributed = LazyModule("distributed")

DEFAULT_TIMEOUT_S = 1800.0
_LOG = logging.getLogger(__name__)
# How long, and how often, a client is looked at for word that tasks have begun again.
_RESTARTED_S, _LOOK_S = 2.0, 0.01
# After a timeout, the request for the state of the workers may take so much longer.
_LAST_LOOK_S = 10.0
AnyClient = TypeVar("AnyClient")
# Reasons that Dask gives for cancelled tasks.
_CONNECTION_LOST, _RESTARTED, _UNKNOWN = "scheduler-connection-lost", "scheduler-restart", "unknown"
# A worker that answers nothing for so long is taken to be lost.
_ANSWER_S = 60.0


def silence_ended_waits() -> None:
    """Let asyncio log no traceback for each wait for a result that an interruption has ended."""
    logging.getLogger("asyncio").addFilter(_is_failure)


def _is_failure(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio is about more than Dask's waiting for results, which Ctrl-C has ended."""
    return not record.exc_info or getattr(record.exc_info[0], "__name__", "") != "AllExit"


@contextmanager
def lost_cluster() -> Iterator[None]:
    """Translate Dask's errors of lost schedulers and workers; other errors pass unchanged.

    Raises
    ------
    ClusterError
        If the client is closed, the scheduler is lost, workers died while running a task, or there is no worker.
    """
    try:
        yield
    except BaseException as error:
        translated = _translated(error) if "distributed" in sys.modules else None
        if translated is None:
            raise
        raise translated from error


def _translated(error: BaseException) -> ClusterError | None:
    """Return the error for a lost cluster, None for any other error."""
    from distributed import CancelledError
    from distributed.client import ClosedClientError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    match error:
        case ClosedClientError():
            return closed_client()
        case CancelledError() if reasons := _reasons(error) - {_CONNECTION_LOST, _UNKNOWN}:
            return ClusterError(
                f"{'' if _RESTARTED in reasons else 'tasks were cancelled, as where '}the workers were restarted",
                "workers that keep their results, and no client.restart() or client.cancel() meanwhile",
                "commits are kept; run the same command again to continue",
            )
        case CancelledError() | CommClosedError():
            return ClusterError(
                "the connection to the scheduler is lost",
                "a scheduler that stays alive",
                "commits are kept; start a scheduler and run the same command again to continue",
            )
        case KilledWorker():
            return ClusterError(
                f"the cluster lost a task: {str(error).splitlines()[0]}",
                "workers that stay alive",
                "check the workers' logs and memory, then run the same command again",
            )
        case NoValidWorkerError():
            return ClusterError(
                "there was no worker for too long",
                "workers",
                "start workers and run the same command again to continue",
            )
    return None


def _reasons(error: BaseException) -> set[str]:
    """Return the reasons that Dask gives for cancelled futures; none where it gives none."""
    groups = getattr(error, "error_groups", [error])
    return {reason for each in groups if (reason := getattr(each, "reason", None))}


def closed_client() -> ClusterError:
    """Return the error for a client that was closed, or that closed itself when it lost its scheduler."""
    return ClusterError(
        "the client is closed",
        "one that is connected to a scheduler",
        "connect again (if the scheduler has ended, start one first); commits are kept",
    )


@contextmanager
def attempt() -> Iterator[None]:
    """Release the futures of failed tasks after an error, so that a retry is possible; translate as `lost_cluster`.

    The traceback of an error references futures of tasks that failed. The scheduler would keep
    these, and a retry, whose tasks have the same keys, would get the old failure.
    """
    try:
        with lost_cluster():
            yield
    except GiaannError as error:
        traceback.clear_frames(error.__traceback__)
        raise


def task_key(name: str, *identity: Any) -> str:
    """Return the key of a task: its name, as the dashboard shows it, and a hash of its inputs.

    Examples
    --------
    >>> task_key("count_batch", "net", 3) == task_key("count_batch", "net", 3)
    True
    """
    from dask.base import tokenize

    return f"{name}-{tokenize(*identity)}"


def timeout_s() -> float:
    """Return the timeout of one result in seconds (``giaann.timeout-s`` in Dask's configuration)."""
    import dask

    return float(dask.config.get("giaann.timeout-s", DEFAULT_TIMEOUT_S))


def current_client() -> Client | None:
    """Return the current Dask client of this process if it is synchronous, else None."""
    # A process that has not imported Dask's scheduler has no client.
    if "distributed" not in sys.modules:
        return None
    try:
        client = _default_client()
    except ValueError:
        return None
    return None if client.asynchronous else client


def _default_client() -> Client:
    """Return Dask's default client; raise a ValueError without one, or where its cluster in this process was closed."""
    from distributed import default_client

    client = default_client()
    # Tasks of such a cluster open clients, which go on connecting when it is closed.
    if client.status != "running" and client.scheduler.address.startswith("inproc://"):
        raise ValueError("the cluster of the default client is closed")
    return client


def find_client() -> Client | None:
    """Return the client of a call that names none: the current one, within a task its worker's; None without any.

    Raises
    ------
    OptionError
        If it is asynchronous.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import get_client, get_worker

    try:
        get_worker()
        found = get_client
    except ValueError:
        found = _default_client
    try:
        client = found()
    except ValueError:
        return None
    return require_synchronous(client, "the current Dask client")


@contextmanager
def beside_tasks() -> Iterator[None]:
    """Leave the threads of a worker's tasks while a task waits for others, which may need its thread."""
    left = None
    if "distributed" in sys.modules:
        from distributed import secede

        # Outside of tasks, or in one that has left them.
        with suppress(ValueError, KeyError, AttributeError):
            secede()
            left = threading.get_ident()
    try:
        yield
    finally:
        # Training in the background ends in another thread.
        if left == threading.get_ident():
            from distributed import rejoin

            rejoin()


def require_synchronous(client: AnyClient, what: str = "") -> AnyClient:
    """Return a client or a cluster object; raise an `OptionError` if it is asynchronous."""
    if getattr(client, "asynchronous", False):
        raise OptionError(
            f"{what or 'client'} is asynchronous",
            "a synchronous distributed.Client, as of Client(address)",
            "make one in another thread; train with it and wait=False to await the training",
        )
    return client


def query_scheduler(client: Client, question: str, *, limit_s: float | None = None, **arguments: Any) -> Any:
    """Send a request to the scheduler and return its response, within a timeout.

    Parameters
    ----------
    client : Client
        Connected to the scheduler.
    question : str
        Name of the scheduler's handler, such as ``identity``.
    limit_s : float, optional
        Seconds to wait; as for a task by default.
    **arguments
        Of the handler.

    Raises
    ------
    ClusterError
        If the client is closed, or there is no response.
    OptionError
        If the client is asynchronous.
    """
    limit = timeout_s() if limit_s is None else limit_s
    require_synchronous(client)
    if client.scheduler is None:
        raise closed_client()
    try:
        return client.sync(getattr(client.scheduler, question), callback_timeout=limit, **arguments)
    except OSError as error:
        # Includes the TimeoutError of a scheduler that hangs.
        raise ClusterError(
            "the scheduler does not respond",
            "a running scheduler",
            "commits are kept; run the same command again to continue",
        ) from error


def ask_workers(
    client: Client,
    question: Callable[..., Any],
    *arguments: Any,
    workers: Set[str] | None = None,
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Call a function on workers outside of tasks and return its results or errors, within a timeout.

    Parameters
    ----------
    client : Client
        Connected to the scheduler.
    question : callable
        Called on every worker, in its event loop; a function of a module that workers can import.
    *arguments
        Of the function.
    workers : set of str, optional
        Addresses of these workers; all by default.
    limit_s : float, optional
        Seconds to wait; as for a task by default.

    Raises
    ------
    ClusterError
        If the client is closed, or a worker does not respond.
    """
    if client.scheduler is None:
        raise closed_client()
    limit = timeout_s() if limit_s is None else limit_s
    some = None if workers is None else sorted(workers)
    try:
        responses: dict[str, Any] = call_within(
            limit, client, "run", question, *arguments, workers=some, on_error="return"
        )
    except OSError as error:
        raise ClusterError(
            f"workers do not respond within {limit:g} seconds",
            "a running scheduler and workers",
            "commits are kept; run the same command again to continue",
        ) from error
    return responses


def fetch(keys: Sequence[str]) -> dict[str, Any]:
    """Return the results of tasks that workers have in memory, by key; what none has, or sends in time, is left out.

    Parameters
    ----------
    keys : sequence of str
        Keys of tasks; nothing keeps their results meanwhile but the futures that exist already.
    """
    from giaann_dask.cluster.locality import count_fetched

    home = process_home()
    if home is None or not keys:
        return {}
    answer = asyncio.run_coroutine_threadsafe(_fetch(home, keys), home.loop.asyncio_loop)
    try:
        found, received = answer.result()
    # Also where the time is over.
    except OSError:
        return {}
    count_fetched(received)
    return found


def process_home() -> Worker | Client | None:
    """Return the worker that runs this task, else the client of this process; None if there is neither."""
    try:
        return distributed.get_worker()
    except ValueError:
        return current_client()


async def _fetch(home: Worker | Client, keys: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
    """Return the results, and those of them that other workers have sent."""
    from distributed.utils_comm import gather_from_workers

    own = home.data if isinstance(home, distributed.Worker) else {}
    found = {key: own[key] for key in keys if key in own}
    others = [key for key in keys if key not in found]
    if not others:
        return found, []
    holders = await asyncio.wait_for(home.scheduler.who_has(keys=others), _ANSWER_S)
    having = {key: addresses for key in others if (addresses := holders.get(key))}
    received, *_ = await asyncio.wait_for(gather_from_workers(having, home.rpc), _ANSWER_S)
    return found | received, list(received.values())


def send(client: Client, key: str, value: Any) -> Future:
    """Send a value to a worker as the result of a task, for other tasks; sent again if that worker is lost.

    What is scattered would be lost with it. The scheduler has the value as long as the future exists: for values of a
    few MiB.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    key : str
        Of the task, from `task_key`: another one for another value.
    value : object
        No future, and nothing that holds any.
    """
    return client.submit(_itself, value, key=key)


def _itself(value: Any) -> Any:
    return value


def result(future: Future) -> Any:
    """Return a future's result, within a timeout.

    Raises
    ------
    ClusterError
        If the cluster lost it or did not finish in time. Errors of the task are raised as they are.
    """
    return results([future])[0]


def results(futures: Sequence[Future]) -> list[Any]:
    """Return the results of several futures, in order, within a timeout; they are fetched together.

    Raises
    ------
    ClusterError
        If the cluster lost one or did not finish in time.
    """
    if not futures:
        return []
    limit, client = timeout_s(), futures[0].client
    deadline = time.monotonic() + limit
    while True:
        try:
            with lost_cluster():
                found: list[Any] = client.sync(_gather, client, list(futures), callback_timeout=limit)
        except TimeoutError as error:
            raise _overdue(client, limit) from error
        except LostPartsError:
            if time.monotonic() > deadline:
                raise
            _restart(client, futures)
        else:
            return found


def _restart(client: Client, futures: Sequence[Future]) -> None:
    """Let tasks that have failed begin again, with those of their inputs that the cluster does not hold any more."""
    failed = [future for future in futures if future.status == "error"]
    _LOG.info("%s tasks restart, because increments were lost", len(failed))
    # The client's own method needs futures of all tasks that have failed, also of those which others depend on.
    query_scheduler(client, "retry", keys=[future.key for future in failed])
    deadline = time.monotonic() + _RESTARTED_S
    while any(future.status == "error" for future in failed) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def want(client: Client, key: str) -> Future:
    """Return a future of a result that the cluster holds, which it holds as long as the future exists.

    Parameters
    ----------
    client : Client
        That wants it; in a task, of its worker.
    key : str
        Of the task: one whose result another task has as input now.
    """
    from distributed import Future, wait

    future = Future(key, client)
    keep_result(client, key)
    # Until the scheduler has answered, the end of the other task would release the result.
    wait([future], timeout=timeout_s())
    return future


async def _gather(client: Client, futures: list[Future]) -> Any:
    """Fetch results in one request to each worker, instead of one request to each for every result."""
    return await client.gather(futures, asynchronous=True)


def wait_all(futures: Sequence[Future]) -> None:
    """Wait, with a timeout, until all futures are finished; raise the first error."""
    if not futures:
        return
    from distributed import as_completed

    limit = timeout_s()
    try:
        for future in as_completed(list(futures), loop=futures[0].client.loop, timeout=limit, raise_errors=False):
            # Failed, or cancelled because the scheduler was lost.
            if future.status != "finished":
                results([future])
    except TimeoutError as error:
        raise _overdue(futures[0].client, limit) from error


def _overdue(client: Client, limit_s: float) -> ClusterError:
    """Return the error for tasks that have not finished in time."""
    from distributed.comm import CommClosedError

    workers: dict[str, Any] = {}
    with suppress(OSError, CommClosedError, AttributeError):
        workers = client.sync(client.scheduler.identity, callback_timeout=_LAST_LOOK_S, n_workers=-1)["workers"]
    paused = sum(worker.get("status") == "paused" for worker in workers.values())
    if paused:
        return ClusterError(
            f"a task has not finished within {limit_s:g} seconds, and {paused} of {len(workers)} workers take none",
            "workers with memory for the task that they run",
            "raise memory_limit, or use smaller batch_sequences; commits are kept",
        )
    return ClusterError(
        f"a task has not finished within {limit_s:g} seconds",
        "an answer in time",
        "raise giaann.timeout-s in Dask's configuration if the work is that long",
    )
