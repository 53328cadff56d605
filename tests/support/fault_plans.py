"""Seeded plans of what happens to workers while a network is trained, and the thread that does it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from distributed import Client, Nanny

from giaann_dask.events import Event, RoundIntegrated

ACTIONS = ("kill", "stop", "add", "retire", "slow")
VICTIMS = ("driver", "worker", "all")
# No longer than this is waited for the effect of an action.
EFFECT_S = 90.0


@dataclass(frozen=True)
class Step:
    """An action, the share of the sequences after which it happens, and which worker it hits."""

    progress: float
    action: str
    choice: float
    delay_s: float


@dataclass(frozen=True)
class Kill:
    """Who is killed how many seconds after the start of a training: the driver, a worker, or all processes at once."""

    victim: str
    after_s: float


@dataclass(frozen=True)
class Happened:
    """What was done to which worker, and the share of the sequences that was trained before and after."""

    action: str
    worker: str
    before: float
    after: float


def plan_of(seed: int) -> tuple[Step, ...]:
    """Return two to four different actions; the first goes through all of them as the seed grows."""
    choose = random.Random(seed)
    first = ACTIONS[seed % len(ACTIONS)]
    others = [action for action in ACTIONS if action != first]
    actions = [first, *choose.sample(others, choose.randint(1, 3))]
    choose.shuffle(actions)
    moments = sorted(choose.uniform(0.05, 0.6) for _ in actions)
    return tuple(
        Step(moment, action, choose.random(), choose.uniform(0, 0.3))
        for moment, action in zip(moments, actions, strict=True)
    )


def kills_of(choose: random.Random, count: int, longest_s: float) -> tuple[Kill, ...]:
    """Return kills of a training that is begun again after each, at any moment from its start on."""
    return tuple(Kill(choose.choice(VICTIMS), choose.uniform(0, longest_s)) for _ in range(count))


class Disturber:
    """Carries out a plan on the workers of a local cluster while `observe` is told of the progress.

    Training is not let past four fifths before the last action has had its effect, so that every
    action falls into it.
    """

    def __init__(self, client: Client, plan: tuple[Step, ...], sequences: int) -> None:
        self.happened: list[Happened] = []
        self.failure: BaseException | None = None
        self._client, self._plan, self._sequences = client, plan, sequences
        self._trained = 0
        self._moved = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def disturbing(self) -> Iterator[Callable[[Event], None]]:
        """Yield the observer of a training run that is disturbed."""
        self._thread.start()
        try:
            yield self._observe
        finally:
            self._over.set()
            with self._moved:
                self._moved.notify_all()
            self._thread.join(EFFECT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _observe(self, event: Event) -> None:
        if isinstance(event, RoundIntegrated):
            with self._moved:
                self._trained += event.sequences
                self._moved.notify_all()
            if self._progress() > 0.8:
                self._thread.join(len(self._plan) * EFFECT_S)

    def _progress(self) -> float:
        return self._trained / self._sequences

    def _run(self) -> None:
        try:
            for step in self._plan:
                with self._moved:
                    self._moved.wait_for(lambda at=step.progress: self._over.is_set() or self._progress() >= at)
                time.sleep(step.delay_s)
                if self._over.is_set():
                    return
                before = self._progress()
                worker = getattr(self, f"_{step.action}")(step.choice)
                self.happened.append(Happened(step.action, worker, before, self._progress()))
        except BaseException as failure:
            self.failure = failure

    def _kill(self, choice: float) -> str:
        nanny, address = self._victim(choice)
        os.kill(nanny.pid, signal.SIGKILL)
        self._wait(lambda: address not in self._present(), "a killed worker is gone")
        return address

    def _stop(self, choice: float) -> str:
        nanny, address = self._victim(choice)
        pid = nanny.pid
        os.kill(pid, signal.SIGSTOP)
        self._wait(lambda: address not in self._present(), "a stopped worker is given up")
        self._wait(lambda: nanny.pid != pid, "its process is replaced")
        return address

    def _add(self, choice: float) -> str:
        before = set(self._present())
        cluster = self._client.cluster
        cluster.scale(len(cluster.worker_spec) + 1)
        self._wait(lambda: bool(set(self._present()) - before), "a new worker is there")
        return min(set(self._present()) - before)

    def _retire(self, choice: float) -> str:
        self._wait(lambda: len(self._present()) > 1, "there is a worker that may leave")
        _, address = self._victim(choice)
        self._client.retire_workers([address])
        self._wait(lambda: address not in self._present(), "a retired worker has left")
        return address

    def _slow(self, choice: float) -> str:
        nanny, address = self._victim(choice)
        with suppress(ProcessLookupError):
            throttle(nanny.pid, 3.0)
        return address

    def _victim(self, choice: float) -> tuple[Nanny, str]:
        """Return a worker that is there; waits until one is."""
        self._wait(lambda: bool(self._present()), "a worker is there")
        present = self._present()
        address = sorted(present)[int(choice * len(present))]
        return present[address], address

    def _present(self) -> dict[str, Nanny]:
        """Return the workers that the scheduler knows, without asking them."""
        cluster = self._client.cluster
        nannies = {nanny.worker_address: nanny for nanny in list(cluster.workers.values()) if nanny.pid}
        return {address: nannies[address] for address in list(cluster.scheduler.workers) if address in nannies}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + EFFECT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} within {EFFECT_S:g} s"
            time.sleep(0.02)


def throttle(pid: int, seconds: float, share: float = 0.25, period_s: float = 0.2) -> None:
    """Let a process run for a share of the time only."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(period_s * (1 - share))
            os.kill(pid, signal.SIGCONT)
            time.sleep(period_s * share)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
