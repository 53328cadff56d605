"""Report per round how many bytes stayed with the owners of regions, how many were moved because of what, and the work.

Workers count them (`giaann_dask.cluster.locality`) and are asked for the sums after every round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set

from distributed import Client

from giaann_dask.cluster.locality import COUNTS, locality_of, total
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.cluster.worker_speeds import Work
from giaann_dask.errors import ClusterError
from giaann_dask.events import DataMoved

_LOG = logging.getLogger(__name__)
# What is moved so long after workers have changed is moved because of that.
_CHANGED_S = 5.0
# A worker that does not answer for so long may hang: nobody is asked again for some time, so that rounds go on.
_PATIENCE_S, _PAUSE_S = 2.0, 60.0


class DataMoves:
    """Sums of what workers have told, of which events are made.

    Parameters
    ----------
    client : Client
        Of the cluster.
    workers : set of str
        Addresses of its workers.

    Attributes
    ----------
    work : dict of str to Work
        Of each worker between the last two events; empty where workers did not answer.
    """

    def __init__(self, client: Client, workers: Set[str] = frozenset()) -> None:
        self._client, self._workers = client, workers
        # What workers told last, also of those that are gone; and the sums at the last event.
        self._told: dict[str, dict[str, int]] = {}
        self._before: dict[str, int] = {}
        self._worked: dict[str, Work] = {}
        self.work: dict[str, Work] = {}
        self._stayed = 0
        self._changed_at = float("-inf")
        self._ask_from = float("-inf")
        # What was moved before is left out.
        self.since(0)

    def note_workers(self, present: Set[str]) -> None:
        """Note and log which workers have left or joined, so that regions have other owners."""
        if present != self._workers:
            self._changed_at = time.monotonic()
        for event, changed in (("lost", self._workers - present), ("came", present - self._workers)):
            if changed:
                _LOG.info("workers %s: %s; now there are %s", event, ", ".join(sorted(changed)), len(present))
        self._workers = present

    def since(self, number: int) -> DataMoved:
        """Return the event of what was moved since the last one, up to the end of a round."""
        found = {}
        if time.monotonic() >= self._ask_from:
            try:
                found = ask_workers(self._client, locality_of, limit_s=_PATIENCE_S)
            except ClusterError:
                # Whether the cluster is lost is found out by those who need it.
                self._ask_from = time.monotonic() + _PAUSE_S
        counts = {worker: told for worker, told in found.items() if isinstance(told, dict)}
        worked = {worker: told.get("work", Work()) for worker, told in counts.items()}
        self.work = {worker: _new(work, self._worked.get(worker, Work())) for worker, work in worked.items()}
        self._worked |= worked
        self._take(counts)
        return self._event(number)

    def _take(self, told: Mapping[str, Mapping[str, int]]) -> None:
        for worker, counts in told.items():
            before = self._told.get(worker, {})
            self._told[worker] = {name: max(counts.get(name, 0), before.get(name, 0)) for name in COUNTS}

    def _event(self, number: int) -> DataMoved:
        sums = total(self._told.values())
        new = {name: sums[name] - self._before.get(name, 0) for name in COUNTS}
        self._before = sums
        # Of what is used, bytes that were received are counted earlier.
        stayed = max(sums["used_bytes"] - sums["increment_bytes"] - sums["run_bytes"], self._stayed)
        staying, self._stayed = stayed - self._stayed, stayed
        changed = time.monotonic() - self._changed_at < _CHANGED_S
        runs, read = new["run_bytes"], new["read_bytes"]
        return DataMoved(
            number,
            stayed_bytes=staying,
            increment_bytes=new["increment_bytes"],
            stolen_bytes=0 if changed else runs,
            reassigned_bytes=runs + read if changed else 0,
            read_bytes=0 if changed else read,
            spilled_bytes=new["spilled_bytes"],
            other_bytes=new["other_bytes"],
        )


def _new(work: Work, before: Work) -> Work:
    """Return the work since some earlier work; all of it where another worker has come at the same address."""
    return work if work.nbytes < before.nbytes or work.moved < before.moved else work.plus(before, -1)
