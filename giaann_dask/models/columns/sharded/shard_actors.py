"""Create the actors that hold parts of states on workers, send them calls, and know which of them are lost.

A worker that is gone, or that does not respond in time, is asked nothing any more; workers that join are found when a
part has to be placed. Does not cover: which parts there are and what they contained
(`giaann_dask.models.columns.sharded.workers`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import roles_of
from giaann_dask.errors import ClusterError
from giaann_dask.models.columns.sharded.state_actor import Call, StateActor

if TYPE_CHECKING:
    from distributed import Client, Future

# The holder in this process.
HERE = 0
_LOOK_S = 0.2
# For an actor to be created on a worker that has imported nothing yet.
_OPEN_S = 60.0
_LOG = logging.getLogger(__name__)


class ShardActors:
    """Actors that hold parts, by number; the one in this process has the number `HERE`.

    Parameters
    ----------
    client : Client
        Of the cluster whose computing workers may hold parts.
    here : StateActor
        Holder in this process.
    arguments : tuple
        Of the `StateActor` of each worker.
    timeout_s : float
        Seconds after which a worker that does not respond is lost.
    """

    def __init__(self, client: Client, here: StateActor, arguments: tuple[Any, ...], timeout_s: float) -> None:
        self._client, self._arguments, self._timeout_s = client, arguments, timeout_s
        self._actors: list[Any] = [here]
        # By the address of the worker; a process that is started again has another address.
        self._numbers: dict[str, int] = {}
        self._lost: set[int] = set()
        self._futures: list[Future] = []
        # Nobody else, in this process or another, may find these actors by their keys.
        self._name = f"part-holder-{uuid.uuid4().hex}"

    @property
    def on_workers(self) -> bool:
        """Whether any worker has been asked to hold parts."""
        return len(self._actors) > 1

    def choose(self, place: int) -> int:
        """Return the holder for a part, in turn by its place.

        Raises
        ------
        ClusterError
            If no computing worker responds in time.
        """
        usable = self._usable()
        if not usable:
            self._look()
            usable = self._usable()
        deadline = time.monotonic() + self._timeout_s
        while not usable and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self._look()
            usable = self._usable()
        if not usable:
            raise ClusterError(
                f"no worker holds parts of a state within {self._timeout_s:g} seconds",
                "computing workers that stay alive",
                "look at the workers' logs and memory, then begin the sequence again",
            )
        return usable[place % len(usable)]

    def ask(self, calls: dict[int, list[Call]]) -> dict[int, list[Any] | None]:
        """Send each holder its calls, all at once; return their results.

        None stands for a holder that is lost, or that has lost any of the parts, whatever it has done with the others.
        """
        found: dict[int, list[Any] | None] = dict.fromkeys(calls)
        sent = {}
        for number, its in calls.items():
            if number not in self._lost and number != HERE:
                try:
                    sent[number] = self._actors[number].act(its)
                except (OSError, RuntimeError) as error:
                    self._lose(number, error)
        if HERE in calls:
            found[HERE] = self._actors[HERE].act(calls[HERE])
        for number, answer in sent.items():
            try:
                found[number] = answer.result(timeout=self._timeout_s)
            except ClusterError:
                # The worker is there and does not have the part.
                _LOG.warning("a worker does not hold a part of a state any more")
            except (OSError, RuntimeError) as error:
                self._lose(number, error)
        return found

    def drop(self, parts: Iterable[tuple[int, int]]) -> None:
        """Let actors forget parts, without waiting; those of a lost cluster have forgotten them."""
        for number, part in parts:
            with suppress(Exception):
                self._actors[number].act([Call("drop", part)])

    def _usable(self) -> list[int]:
        return [number for number in range(1, len(self._actors)) if number not in self._lost]

    def _lose(self, number: int, error: Exception) -> None:
        _LOG.warning("a worker that holds parts of a state does not respond (%s)", error or type(error).__name__)
        self._lost.add(number)

    def _look(self) -> None:
        """Create an actor on each computing worker that has none."""
        new = [address for address in roles_of(self._client).compute if address not in self._numbers]
        futures = [
            self._client.submit(
                StateActor, *self._arguments, actor=True, workers=[address], key=f"{self._name}-{uuid.uuid4().hex}"
            )
            for address in new
        ]
        for address, future in zip(new, futures, strict=True):
            number = self._numbers[address] = len(self._actors)
            self._futures.append(future)
            self._actors.append(None)
            limit_s = max(self._timeout_s, _OPEN_S)
            try:
                actor = future.result(timeout=limit_s)
                # The first part imports what parts need; later calls are answered at once, or the worker is lost.
                actor.act([Call("begin", HERE), Call("drop", HERE)]).result(timeout=limit_s)
                self._actors[number] = actor
            except Exception as error:  # Dask has several for a worker that is lost meanwhile.
                self._lose(number, error)


def by_actor(calls: Sequence[tuple[int, Call]]) -> dict[int, list[Call]]:
    """Return calls by the actors that have their parts, in order."""
    found: dict[int, list[Call]] = {}
    for number, call in calls:
        found.setdefault(number, []).append(call)
    return found
