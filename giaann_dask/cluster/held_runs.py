"""Read the runs of a persisted commit from the workers that hold them, entry by entry, instead of from the store.

Every reader of a commit looks here before it reads a run (`giaann_dask.store.run_sources`), in clients and in tasks. A
worker sends the entries of a table as they are stored, so what is decoded is the same. What no worker has any more, or
sends in time, is read from the store. Does not cover: rows of many neurons at a time (`giaann_dask.rows.remote`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from distributed import Client, Worker
from distributed.utils import in_async_call

from giaann_dask.cluster.locality import count_run_bytes
from giaann_dask.cluster.persistence import dataset_of
from giaann_dask.cluster.regions import run_places
from giaann_dask.cluster.waiting import process_home
from giaann_dask.cluster.worker_services import WorkerService, install_service, remove_service, send_message

if TYPE_CHECKING:
    from giaann_dask.runs.packing import PackedRun
    from giaann_dask.store.commits import CommitReader
    from giaann_dask.store.run_sources import TableEntries

Answer = TypeVar("Answer")
# Bytes of an answer, about; an entry is never divided.
ANSWER_BYTES = 32 << 20
_CONNECT_S, _ANSWER_S = 3.0, 30.0
# Two workers are asked, and the scheduler in between.
_LONGEST_S = 4 * _ANSWER_S
# A network that is not persisted may be so later.
_ASK_AGAIN_S = 1.0
_absent: dict[tuple[str, str], float] = {}


class EntryService(WorkerService):
    """Answers requests for the entries of runs that Dask holds on a worker."""

    name = "giaann-entries"
    operation = "giaann_entries"

    async def answer(  # type: ignore[override]
        self, key: str, table: str, names: Sequence[str], limit: int
    ) -> dict[str, Any]:
        """Return entries of a run, given the key of its task, and how many of the names they answer.

        The entries are None where this worker does not have the run.
        """
        run = self._worker.data.get(key)
        if run is None:
            return {"entries": None, "answered": 0}
        packed: PackedRun | None = getattr(run, table)
        found: dict[str, bytes] = {}
        answered = 0
        for name in names:
            if found and limit <= 0:
                break
            more = {} if packed is None else packed.read([name])
            limit -= sum(map(len, more.values()))
            found |= more
            answered += 1
        return {"entries": found, "answered": answered}


def install_entries(client: Client, path: str) -> None:
    """Install the service by which workers send entries of the runs of a network."""
    install_service(client, EntryService, path)


def remove_entries(client: Client, path: str) -> None:
    """Remove what `install_entries` has installed."""
    remove_service(client, f"{EntryService.name}-{path}")


class HeldRuns:
    """Runs of a commit that workers hold.

    Parameters
    ----------
    home : Worker or Client
        Whose connections are used.
    keys : mapping of str to str
        Keys of the tasks whose results are the runs, by their identities.
    holders : mapping of str to str
        Addresses of the workers that have them, by key.
    """

    def __init__(self, home: Worker | Client, keys: Mapping[str, str], holders: Mapping[str, str]) -> None:
        self._home, self._keys, self._holders = home, keys, dict(holders)

    def entries(self, identity: str, table: str, stored: TableEntries) -> TableEntries:
        """Return the entries of a table of a run; see `giaann_dask.store.run_sources.RunSource`."""
        key = self._keys.get(identity, "")
        return _HeldEntries(self, key, table, stored) if key in self._holders else stored

    def read(self, key: str, table: str, names: Sequence[str]) -> dict[str, bytes] | None:
        """Return entries of a run, None where no worker has it or sends them in time."""
        found: dict[str, bytes] = {}
        while names:
            answer = _wait(self._home, self._ask({"key": key, "table": table, "names": list(names)}))
            if answer is None:
                return None
            found |= answer["entries"]
            names = names[answer["answered"] :]
        return found

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the worker that has had a run, and where it has it no more the one that has it now."""
        key = question["key"]
        for attempt in range(2):
            if attempt:
                self._holders |= await _holders_of(self._home, [key])
            with suppress(OSError):
                answer = await self._call({**question, "limit": ANSWER_BYTES})
                if answer is not None and answer["entries"] is not None:
                    return answer
            self._holders.pop(key, None)
        return None

    async def _call(self, question: dict[str, Any]) -> dict[str, Any] | None:
        holder = self._holders.get(question["key"])
        if holder is None:
            return None
        if isinstance(self._home, Worker) and holder == self._home.address:
            service = self._home.extensions.get(EntryService.name)
            return None if service is None else await service.answer(**question)
        message = {"op": EntryService.operation, **question}
        answer: dict[str, Any] = await asyncio.wait_for(
            send_message(self._home, holder, _CONNECT_S, message), _ANSWER_S
        )
        if isinstance(self._home, Worker):
            count_run_bytes(self._home, sum(map(len, (answer["entries"] or {}).values())))
        return answer


class _HeldEntries:
    """Entries of a table of a run that a worker holds, else those of the store."""

    def __init__(self, runs: HeldRuns, key: str, table: str, stored: TableEntries) -> None:
        self._runs, self._key, self._table, self._stored = runs, key, table, stored

    def read(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries with these names, relative to the table; those that do not exist are left out."""
        found = self._runs.read(self._key, self._table, names)
        return self._stored.read(names) if found is None else found


def find_held_runs(reader: CommitReader) -> HeldRuns | None:
    """Return the runs of a commit that workers hold, as its network is persisted; None where it is not."""
    home = process_home()
    if home is None or home.scheduler is None:
        return None
    place = (str(home.id), str(reader.path))
    if time.monotonic() < _absent.get(place, 0.0):
        return None
    if not _wait(home, _is_persisted(home, str(reader.path))):
        _absent[place] = time.monotonic() + _ASK_AGAIN_S
        return None
    keys = {run.identity: key for _, runs in run_places(reader) for key, run in runs.items()}
    holders = _wait(home, _holders_of(home, list(keys.values())))
    return None if holders is None else HeldRuns(home, keys, holders)


async def _is_persisted(home: Worker | Client, path: str) -> bool:
    """Return whether the runs of a network are published."""
    return dataset_of(path) in await asyncio.wait_for(home.scheduler.publish_list(), _ANSWER_S)


async def _holders_of(home: Worker | Client, keys: Sequence[str]) -> dict[str, str]:
    """Return a worker that has the result of each of these tasks, this one where it does, by key."""
    having = await asyncio.wait_for(home.scheduler.who_has(keys=keys), _ANSWER_S)
    own = home.address if isinstance(home, Worker) else ""
    return {key: own if own in its else min(its) for key, its in having.items() if its}


def _wait(home: Worker | Client, question: Coroutine[Any, Any, Answer | None]) -> Answer | None:
    """Return the answer to a question on the event loop of a worker or client, None where there is none."""
    loop = home.loop.asyncio_loop
    # Who runs on the event loop cannot wait for it.
    if loop.is_closed() or in_async_call(home.loop):
        question.close()
        return None
    try:
        return asyncio.run_coroutine_threadsafe(question, loop).result(_LONGEST_S)
    # The cluster is lost or closing.
    except (OSError, CancelledError):
        return None
