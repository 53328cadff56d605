"""Submit tasks to a cluster, several of them in one message where they are known together.

Each message costs scheduler and client about as much as a small task. The graph of several tasks is built here, from
Dask's own task specification.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from giaann_dask import library_internals
from giaann_dask.lazy import LazyModule

if TYPE_CHECKING:
    import dask
    import distributed
    from distributed import Client, Future

    from giaann_dask.library_internals import Alias, Task
else:
    # Options that name tasks are validated without importing Dask's scheduler.
    dask = LazyModule("dask")
    distributed = LazyModule("distributed")

# What stands for the result of a task as an argument of others; both have its key.
Submitted: TypeAlias = "Future | Alias"

# The scheduler prefers the tasks of an earlier graph, however soon the next one follows.
_FIFO = "0s"
# Below that of all other tasks.
_LOW_PRIORITY = -1
# Held by the task of low priority that a process runs.
_LOW = threading.Lock()
_PLACES = frozenset(("workers", "allow_other_workers", "resources"))


@contextmanager
def low_priority() -> Iterator[None]:
    """Run the tasks that this thread submits in the block only where a worker has no others to run.

    Such a task leaves the threads of its worker to others that come meanwhile; a process runs one of them at a time.
    """
    with dask.annotate(priority=_LOW_PRIORITY):
        yield


def run_beside(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the result of a task of low priority, for which other tasks of its worker do not wait."""
    # Without a worker nothing waits.
    with suppress(ValueError, KeyError, AttributeError):
        distributed.secede()
    with _LOW:
        return function(*arguments, **named)


def _as_submitted(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
    """Return the function of a task and its arguments, by the priority of what this thread submits."""
    if dask.get_annotations().get("priority") == _LOW_PRIORITY:
        return run_beside, (function, *arguments)
    return function, arguments


@dataclass(eq=False)
class _Graph:
    """Tasks that run at the same place.

    Attributes
    ----------
    where : dict
        Arguments of `Client.get` for all of them.
    tasks : dict of str to Task
        By key.
    wanted : dict of str to Future
        Tasks whose results the client refers to.
    arguments : list
        Their arguments, as the scheduler forgets a result as soon as no future stands for it.
    """

    where: dict[str, Any]
    tasks: dict[str, Task] = field(default_factory=dict)
    wanted: dict[str, Future] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)


class TaskSubmitter:
    """Submitter of tasks, each at once or together with others.

    Parameters
    ----------
    client : Client
        Connected to the cluster.

    Attributes
    ----------
    count : int
        Tasks submitted here.
    anywhere : dict
        Where tasks run that name no place (`giaann_dask.cluster.roles.Roles.anywhere`); on any worker by default.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.anywhere: dict[str, Any] = {}
        self._graphs: list[_Graph] = []
        # The graph of each task that is collected.
        self._place: dict[str, int] = {}
        self._depth = 0
        self.count = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Collect the tasks that are submitted in this block, and submit them when it ends.

        Their results must not be waited for within the block. After an error, none of them is submitted.
        """
        self._depth += 1
        try:
            yield
            if self._depth == 1:
                self._send()
        finally:
            self._depth -= 1
            if not self._depth:
                self._graphs, self._place = [], {}

    def submit(self, key: str, function: Callable[..., Any], *arguments: Any, **where: Any) -> Future:
        """Submit a task, and return its future, as `Client.submit` does.

        Parameters
        ----------
        key : str
            Of the task, from `giaann_dask.cluster.waiting.task_key`.
        function : callable
            Called with the arguments; futures among these, also in lists, stand for their results.
        *arguments
            Of the function.
        **where
            ``workers``, ``allow_other_workers`` and ``resources`` of `Client.submit`; others are arguments of the
            function.
        """
        self.count += 1
        function, arguments = _as_submitted(function, arguments)
        if not self._depth:
            return self._client.submit(function, *arguments, key=key, **self._placed(where))
        graph = self._add(key, function, *arguments, **where)
        # The future does not reach the scheduler before the graph does, and keeps its key until then.
        return graph.wanted.setdefault(key, distributed.Future(key, self._client))

    def pass_on(self, key: str, function: Callable[..., Any], *arguments: Any, **where: Any) -> Submitted:
        """Submit a task whose result is used by tasks of the same block only; outside of a block like `submit`."""
        if not self._depth:
            return self.submit(key, function, *arguments, **where)
        self.count += 1
        function, arguments = _as_submitted(function, arguments)
        self._add(key, function, *arguments, **where)
        return library_internals.Alias(key)

    def _placed(self, where: dict[str, Any]) -> dict[str, Any]:
        """Return arguments that name a place."""
        return where if where.keys() & _PLACES else {**self.anywhere, **where}

    def _add(self, key: str, function: Callable[..., Any], *arguments: Any, **where: Any) -> _Graph:
        """Add a task to the first graph that is submitted after those which its arguments are in."""
        if key in self._place:
            return self._graphs[self._place[key]]
        where = self._placed(where)
        named = {name: where.pop(name) for name in list(where) if name not in _PLACES}
        task = library_internals.new_task(key, function, *arguments, **named)
        first = max((self._place.get(name, 0) for name in task.dependencies), default=0)
        for place in range(first, len(self._graphs)):
            if self._graphs[place].where == where:
                break
        else:
            place = len(self._graphs)
            self._graphs.append(_Graph(where))
        self._graphs[place].tasks[key] = task
        self._graphs[place].arguments.append((arguments, named))
        self._place[key] = place
        return self._graphs[place]

    def _send(self) -> None:
        """Submit the graphs, the scheduler keeping what later ones use until they are all there."""
        used = [{name for task in graph.tasks.values() for name in task.dependencies} for graph in self._graphs]
        held: list[Any] = []
        for place, graph in enumerate(self._graphs):
            later = set().union(*used[place + 1 :])
            keys = [key for key in graph.tasks if key in graph.wanted or key in later]
            held.append(self._client.get(graph.tasks, keys, sync=False, fifo_timeout=_FIFO, **graph.where))
