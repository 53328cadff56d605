"""Request rows from the workers that hold them: the client side of the row service.

All neurons wanted of one owner are one request, which is repeated for what is beyond the limit of an answer, and after
a region has moved or its worker died. It may be made ahead of need. `RowOptions` decides whether rows are requested or
whole regions are replicated. It works in tasks, from worker to worker, and in the process of the client.
`rows.service` answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future as Answer
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.errors import ClusterError
from giaann_dask.keys import Integers
from giaann_dask.lazy import LazyModule
from giaann_dask.rows.protocol import NAME, OPERATION, RowOptions, RowProjection, RowRequest, RowResponse, bounded
from giaann_dask.rows.source import RowCache, RowCounter, Rows, RowSource, RowStatistics, RunRows, join_row, sum_rows
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Row, Run

if TYPE_CHECKING:
    import distributed
    from distributed import Client, Worker
else:
    distributed = LazyModule("distributed")


# A task that waits longer than this leaves its place to others: to the reading of a region, perhaps.
_PATIENCE_S = 1.0
_CONNECT_S = 3.0
_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 1.0


@dataclass(frozen=True)
class RegionKeys:
    """Keys of the tasks whose results are the regions of a commit.

    Attributes
    ----------
    snapshot : str
        Identity of the commit and its store; rows of one snapshot never change.
    keys : dict of int to tuple of str
        Tasks whose results are the runs of each live region, as `PackedRegionRun`; on any workers.
    options : RowOptions
        How they are asked.
    """

    snapshot: str
    keys: dict[int, tuple[str, ...]]
    options: RowOptions = field(default_factory=RowOptions)

    def __hash__(self) -> int:
        """Return a hash, so that a process can keep what it has opened for some keys."""
        return hash(self.snapshot)


class RemoteRows(RowSource):
    """Rows of a network whose regions are held by workers.

    The futures of the regions have to be kept, by the client, as long as rows are asked for.

    Parameters
    ----------
    placement : Placement
        Where neurons belong.
    regions : RegionKeys
        Which tasks hold them.
    home : Worker or Client
        Whose connections and event loop are used.
    hot : RowCache
        Cache shared by this process.
    projection : RowProjection, optional
        Which part of the rows is wanted.
    """

    def __init__(
        self,
        placement: Placement,
        regions: RegionKeys,
        *,
        home: Worker | Client,
        hot: RowCache,
        projection: RowProjection | None = None,
    ) -> None:
        self._placement = placement
        self._divided = placement.divided()
        self._regions = regions
        self._home = home
        self._hot = hot
        self._trim = projection or RowProjection()
        self._snapshot = f"{regions.snapshot} {self._trim}"
        # Holders of runs by the keys of their tasks.
        self._owners: dict[str, str] = {}
        # Those that did not answer the last time; another holder is asked first, where there is one.
        self._unresponsive: set[str] = set()
        keys = [key for its in regions.keys.values() for key in its]
        self._on_worker = isinstance(home, distributed.Worker)
        self._kept = isinstance(home, distributed.Client) and all(key in home.futures for key in keys)
        self._counter = RowCounter()
        hot.budget = regions.options.cache_bytes

    @classmethod
    def of_client(
        cls, client: Client, placement: Placement, regions: RegionKeys, *, projection: RowProjection | None = None
    ) -> RemoteRows:
        """Return rows for use in the process of a client, with a cache of their own."""
        return cls(placement, regions, home=client, hot=RowCache(), projection=projection)

    @classmethod
    def of_task(
        cls, placement: Placement, regions: RegionKeys, *, projection: RowProjection | None = None
    ) -> RemoteRows:
        """Return rows for use in a task, with the cache of its worker.

        Raises
        ------
        ClusterError
            If the row service was not installed.
        """
        worker = distributed.get_worker()
        if NAME not in worker.extensions:
            raise ClusterError("this worker does not know the row service", "one that does", "install it first")
        return cls(placement, regions, home=worker, hot=worker.extensions[NAME].hot, projection=projection)

    @property
    def figures(self) -> RowStatistics:
        """Counts of this process so far, over all its tasks."""
        return self._hot.counter.figures

    @property
    def snapshot(self) -> str:
        """Identity of the commit, its store and what is wanted of a row."""
        return self._snapshot

    @property
    def own_figures(self) -> RowStatistics:
        """Counts of the requests made through this object, as in one task."""
        return self._counter.figures

    def row(self, neuron: int) -> Row | None:
        """Return the row of a neuron, or None without connections; see `rows.source`."""
        return self.rows([neuron])[neuron]

    def rows(self, neurons: Sequence[int]) -> Rows:
        """Return the rows of some neurons, with at most one request to each owner for those not cached.

        Parameters
        ----------
        neurons : sequence of int
            Neuron keys; a neuron may be named more than once.

        Returns
        -------
        dict of int to Row or None
            None for a neuron without connections in the wanted segments. Strengths are empty where
            they are not wanted.

        Raises
        ------
        ClusterError
            If an owner has not answered within the time limit, or the connection to the cluster is lost.
        """
        found, answers = self._ask(neurons, ahead=False)
        for answer in dict.fromkeys(answers.values()):
            rows = self._wait(answer)
            found.update((neuron, rows[neuron]) for neuron, its in answers.items() if its is answer)
        return found

    def prefetch(self, neurons: Iterable[int]) -> None:
        """Ask for rows that will be wanted soon, without waiting for them.

        Of more than half the cache could keep, as far as rows so far tell, only the first are asked for.
        """
        seen = self._hot.counter.figures
        mean = seen.received_bytes // max(seen.rows, 1)
        self._ask(islice(neurons, self._hot.budget // (2 * max(mean, 1))), ahead=True)

    def _ask(self, neurons: Iterable[int], *, ahead: bool) -> tuple[Rows, dict[int, Answer[Rows]]]:
        """Return the rows that are here, and by neuron the answers that will have the others."""
        distinct = list(dict.fromkeys(neurons))
        found, answers = self._hot.look_up(self._snapshot, distinct, ahead=ahead)
        missing = [neuron for neuron in distinct if neuron not in found and neuron not in answers]
        if not ahead:
            self._counter.count(hits=len(found), awaited=len(answers), misses=len(missing))
        if missing and self._on_worker:
            here = self._read_here(np.sort(np.array(missing, np.int64)))
            self._hot.keep(self._snapshot, here)
            found.update(here)
            missing = [neuron for neuron in missing if neuron not in here]
        if missing:
            self._require_connected()
            loop = self._home.loop.asyncio_loop
            answer = asyncio.run_coroutine_threadsafe(self._fetch(np.array(missing, np.int64)), loop)
            self._hot.expect(self._snapshot, missing, answer)
            answers.update(dict.fromkeys(missing, answer))
        return found, answers

    def _wait(self, answer: Answer[Rows]) -> Rows:
        limit = self._regions.options.timeout_s + self._regions.options.request_s
        deadline = time.monotonic() + limit + _LAST_PAUSE_S
        while True:
            try:
                return answer.result(_PATIENCE_S)
            except TimeoutError:
                _secede_once()
            self._require_connected()
            if time.monotonic() > deadline:
                raise _no_response(limit)

    def _require_connected(self) -> None:
        """Raise a ClusterError when the client is closed: nothing on its event loop ends then."""
        if isinstance(self._home, distributed.Client) and self._home.status in ("closing", "closed"):
            raise _disconnected()

    def _require_kept(self) -> None:
        """Raise a ClusterError when the regions are lost, as the client's futures are with its scheduler."""
        self._require_connected()
        if self._kept and not all(key in self._home.futures for keys in self._regions.keys.values() for key in keys):
            raise _disconnected()

    async def _fetch(self, neurons: Integers) -> Rows:
        """Ask owners until all rows are here; runs on the event loop."""
        parts = self._by_region(np.sort(neurons))
        # By run: what is still to be asked, and what was answered.
        wanted = {key: RowRequest(key, its) for r, its in parts.items() for key in self._regions.keys[r]}
        answered: dict[str, list[Run]] = {key: [] for key in wanted}
        deadline = time.monotonic() + self._regions.options.timeout_s
        pause = _FIRST_PAUSE_S
        while wanted:
            groups = await self._by_owner(wanted)
            found = await asyncio.gather(*(self._request(owner, keys, wanted) for owner, keys in groups.items()))
            responses = {key: response for each in found for key, response in each.items()}
            for key, response in responses.items():
                answered[key].append(response.rows)
                rest = wanted.pop(key).after(response)
                if rest is not None:
                    wanted[key] = rest
            if responses:
                pause = _FIRST_PAUSE_S
            elif time.monotonic() > deadline:
                raise _no_response(self._regions.options.timeout_s)
            else:
                self._require_kept()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_S)
        return self._joined(neurons, parts, answered)

    def _read_here(self, neurons: Integers) -> Rows:
        """Return the rows that this worker has decoded, of ascending neurons; called in a task."""
        service = self._home.extensions.get(NAME)
        parts = {} if service is None else self._by_region(neurons)
        answered: dict[str, list[Run]] = {}
        for region, its in parts.items():
            questions = [RowRequest(key, its) for key in self._regions.keys[region]]
            responses = service.read(questions, self._trim)
            if responses is None:
                # A row may be divided, and one part of it here.
                neurons = np.setdiff1d(neurons, its)
                continue
            answered |= {q.key: [response.rows] for q, response in zip(questions, responses, strict=True)}
            self._count(responses, own=True)
        here = {region: np.intersect1d(its, neurons) for region, its in parts.items()}
        return self._joined(neurons, here, answered)

    def _joined(self, neurons: Integers, parts: Mapping[int, Integers], answered: Mapping[str, Sequence[Run]]) -> Rows:
        """Return the rows of neurons from the answers for the runs of their regions."""
        held: dict[int, list[Row]] = {neuron: [] for neuron in neurons.tolist()}
        # Of several, one that is kept must not keep the whole answer in memory.
        alone = len(held) == 1
        for r, its in parts.items():
            if not len(its):
                continue
            summed = sum_rows([piece for key in self._regions.keys[r] for piece in answered[key]])
            for neuron in its.tolist():
                if (row := summed.row(neuron)) is not None:
                    held[neuron].append(row if alone and row.target.flags.aligned else _copied(row))
        return {neuron: rows[0] if len(rows) == 1 else join_row(rows) for neuron, rows in held.items()}

    def _count(self, responses: Collection[RowResponse], *, own: bool, requests: int = 1, retries: int = 0) -> None:
        """Count the answers of one worker, which may be this one."""
        nbytes = sum(response.rows.nbytes for response in responses)
        figures = RowStatistics(
            requests=requests,
            rows=sum(response.answered for response in responses),
            received_bytes=nbytes,
            local_bytes=nbytes if own else 0,
            retries=retries,
        )
        for counter in (self._hot.counter, self._counter):
            counter.count(**asdict(figures))

    def _by_region(self, neurons: Integers) -> dict[int, Integers]:
        """Return ascending neurons by the regions that have parts of their rows."""
        region = self._placement.regions_of(neurons)
        parts = {int(r): neurons[region == r] for r in np.unique(region)}
        for neuron in self._divided.keys() & neurons.tolist():
            for r in self._divided[neuron]:
                parts[r] = np.union1d(parts.get(r, neurons[:0]), [neuron])
        return parts

    async def _by_owner(self, keys: Collection[str]) -> dict[str, list[str]]:
        """Return the runs of each owner; the scheduler is queried for unknown owners."""
        unknown = [key for key in keys if key not in self._owners]
        if unknown:
            try:
                call = self._home.scheduler.who_has(keys=unknown)
                having: dict[str, list[str]] = await asyncio.wait_for(call, self._regions.options.request_s)
            except OSError:
                having = {}
            own = self._home.address if self._on_worker else None
            for key in unknown:
                if every := having.get(key):
                    self._owners[key] = min(every, key=lambda one: (one in self._unresponsive, one != own, one))
        groups: dict[str, list[str]] = {}
        for key in keys:
            if key in self._owners:
                groups.setdefault(self._owners[key], []).append(key)
        return groups

    async def _request(self, owner: str, keys: list[str], wanted: dict[str, RowRequest]) -> dict[str, RowResponse]:
        """Return the answers of one owner, by run; drop it as the owner of runs that it does not answer."""
        # Another request may need an owner again that this one forgets; it then asks the scheduler too.
        questions = bounded([wanted[key] for key in keys], self._regions.options.answer_bytes)
        keys = [question.key for question in questions]
        began = time.perf_counter()
        try:
            call = self._call(owner, questions)
            answers = await asyncio.wait_for(call, self._regions.options.request_s)
            answered = True
            self._unresponsive.discard(owner)
            if self._on_worker:
                self._home.extensions[NAME].times.asked(time.perf_counter() - began)
        except OSError:
            answers, answered = [None] * len(keys), False
            # Of its other runs too, so that a worker that is gone is waited for once.
            self._owners = {key: one for key, one in self._owners.items() if one != owner}
            self._unresponsive.add(owner)
        found = {key: answer for key, answer in zip(keys, answers, strict=True) if answer is not None}
        for key in set(keys) - set(found):
            self._owners.pop(key, None)
        own = self._on_worker and owner == self._home.address
        self._count(found.values(), own=own, requests=int(answered), retries=len(keys) - len(found))
        return found

    async def _call(self, owner: str, questions: list[RowRequest]) -> list[RowResponse | None]:
        limit = self._regions.options.answer_bytes
        if self._on_worker and owner == self._home.address:
            own: list[RowResponse | None] = await self._home.extensions[NAME].respond(questions, self._trim, limit)
            return own
        from giaann_dask.cluster.worker_services import send_message

        asked = [question.as_message() for question in questions]
        message = {"op": OPERATION, "questions": asked, "projection": self._trim.as_message(), "limit": limit}
        connect_s = min(_CONNECT_S, self._regions.options.request_s)
        reply = await send_message(self._home, owner, connect_s, message)
        answers = reply["answers"] if reply else [None] * len(questions)
        return [None if answer is None else RowResponse.of_message(answer) for answer in answers]


def row_source(
    placement: Placement, regions: Sequence[Run] | RegionKeys, *, projection: RowProjection
) -> RunRows | RemoteRows:
    """Return, in a task, a source of the rows of given regions, or of regions held elsewhere, given their keys."""
    if isinstance(regions, RegionKeys):
        return RemoteRows.of_task(placement, regions, projection=projection)
    return RunRows.placed(placement, regions)


def _copied(row: Row) -> Row:
    return Row(row.target.copy(), row.strength.copy())


def _secede_once() -> None:
    """Let the worker run other tasks beside this one, if this is a task that has not done so yet."""
    from distributed.threadpoolexecutor import thread_state

    if getattr(thread_state, "proceed", False):
        distributed.secede()


def _disconnected() -> ClusterError:
    return ClusterError(
        "the connection to the cluster that holds the network's rows is lost",
        "a client that stays connected to its scheduler",
        "connect and open the network again",
    )


def _no_response(seconds: float) -> ClusterError:
    return ClusterError(
        f"no worker has answered for rows of the network within {seconds:g} seconds",
        "workers that hold its regions",
        "check the workers' logs and memory, then run the same command again",
    )
