"""Judge by measured work which workers are slower than their peers, and what share of the work each gets.

What a worker does in a round is an observation. A slow worker is named and gets work by its speed, then loses its
regions, then is retired, each step after further observations. All of this is a pure function of the observations:
nothing here asks a cluster, and no result of a training depends on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median, median_low
from typing import Literal, NamedTuple, get_args

Cause = Literal["", "compute", "link"]
Reaction = Literal["report", "adapt", "retire"]
REACTIONS: tuple[Reaction, ...] = get_args(Reaction)

STEPS = ("as fast as its peers", "gets less work", "loses its regions", "is retired")

# Observations of a worker that count, and how many there must be. The lower median ignores outliers, such as another
# program for a moment; the first one is left out, as the first task loads or compiles code.
_WINDOW, _ENOUGH = 5, 4
LEAST_SHARE = 0.2
"""Share of the work below which a worker gets no batch: the rounds in flight would wait for it. It is only measured."""
# Speed, relative to the median of the peers, below which each step follows; above the last a worker is as fast.
_BELOW, _RECOVERED = (0.6, 0.5, LEAST_SHARE), 0.8
# Times of transfers vary more than those of counting: healthy links are at 0.64 and above under load, as recorded.
_LINK_BELOW = 0.5
ROUNDS = 5
"""Rounds between two steps, at least, and between two measurements of a worker that gets no batches."""
# Observations of a worker between two steps.
_OBSERVED = 2
# Shares between the first two are equal ones. Later measurements within the others do not change a share.
_EVEN, _NEAR = (2 / 3, 3 / 2), (0.8, 1.25)
# Workers that stay: of those that there were, and at least.
_STAYING, _LEAST_WORKERS = 1 / 2, 2
LEAST_SECONDS = 0.1
"""Time of counting until it is an observation, as times of small tasks vary most."""
# Bytes of a transfer that tells more than latency, of several until they are an observation; links of a worker that
# are kept, and those that make an observation.
_TRANSFER_BYTES, _LEAST_BYTES, _LINKS, _LEAST_LINKS = 1 << 16, 1 << 18, 16, 2
Transfers = Mapping[str, tuple[float, float]]


class Work(NamedTuple):
    """Work of a worker in a round.

    Attributes
    ----------
    nbytes, seconds : float
        Bytes of the increments that it has counted, and for how long its threads have, divided by their number.
    moved : float
        Bytes that it has received from other workers.
    received : mapping of str to tuple
        Bytes and seconds of transfers from some other workers, by their addresses.
    """

    nbytes: float = 0.0
    seconds: float = 0.0
    moved: float = 0.0
    received: Mapping[str, tuple[float, float]] = {}

    def plus(self, other: Work, sign: int = 1) -> Work:
        """Return the work of two times together, or with -1 of the first without the second.

        Examples
        --------
        >>> Work(5.0, 2.0, 8.0, {"a": (8.0, 1.0)}).plus(Work(4.0, 1.0, 6.0, {"a": (6.0, 1.0)}), -1)
        Work(nbytes=1.0, seconds=1.0, moved=2.0, received={'a': (2.0, 0.0)})
        """
        received = dict(self.received)
        for sender, (nbytes, seconds) in other.received.items():
            before = received.get(sender, (0.0, 0.0))
            # A part of the links is enough, where each worker has thousands.
            if sender in received or len(received) < _LINKS:
                received[sender] = before[0] + sign * nbytes, before[1] + sign * seconds
        nbytes, seconds, moved = (mine + sign * its for mine, its in zip(self[:3], other[:3], strict=True))
        return Work(nbytes, seconds, moved, received)


def received_work(sender: str, nbytes: float, seconds: float) -> Work:
    """Return the work of one transfer; a short one tells the latency of its link only."""
    return Work(moved=nbytes, received={sender: (nbytes, seconds)} if nbytes >= _TRANSFER_BYTES else {})


@dataclass(frozen=True)
class Verdict:
    """Judgement of a worker.

    Attributes
    ----------
    step : int
        Place in `STEPS`.
    cause : {"", "compute", "link"}
        Of its slowness.
    speed : float
        Relative to the median of its peers; 1 until it is known.
    share : float
        Of the work, relative to the median of all workers.
    rounds, observed : int
        Since the last step.
    """

    step: int = 0
    cause: Cause = ""
    speed: float = 1.0
    share: float = 1.0
    rounds: int = 0
    observed: int = 0


@dataclass(frozen=True)
class WorkerSpeeds:
    """Judgement of all workers so far.

    Attributes
    ----------
    verdicts : mapping of str to Verdict
        By address.
    counting, links : mapping of str to tuple of float
        Last seconds for a byte of increments, and for a received or sent byte, of each worker.
    pending : mapping of str to Work
        Counting that is too little for an observation yet.
    transfers : mapping of str to mapping
        Bytes and seconds between each worker and others, by the addresses of these, that are too little yet.
    moved, counted : float
        Bytes received and counted by all workers so far.
    most : int
        Most workers that there were.
    """

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    counting: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    links: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    pending: Mapping[str, Work] = field(default_factory=dict)
    transfers: Mapping[str, Transfers] = field(default_factory=dict)
    moved: float = 0.0
    counted: float = 0.0
    most: int = 0

    def review(
        self, work: Mapping[str, Work], reaction: Reaction = "retire", needed: Set[str] = frozenset()
    ) -> WorkerSpeeds:
        """Return the judgement after one more round.

        Parameters
        ----------
        work : mapping of str to Work
            Of every present worker.
        reaction : {"report", "adapt", "retire"}
            Whether slow workers are named only, get less and lose their regions, or are retired, too. At least half
            of the workers stay, and two.
        needed : set of str
            Workers that stay, whatever their speed.

        Examples
        --------
        >>> speeds = WorkerSpeeds()
        >>> for _ in range(20):
        ...     speeds = speeds.review({name: Work(100, 4 if name == "d" else 1) for name in "abcd"})
        >>> speeds.verdicts["d"].cause, speeds.verdicts["d"].share, STEPS[speeds.verdicts["d"].step]
        ('compute', 0.25, 'loses its regions')
        """
        pending = {worker: self.pending.get(worker, Work()).plus(its) for worker, its in work.items()}
        ready = {worker: its for worker, its in pending.items() if its.nbytes and its.seconds >= LEAST_SECONDS}
        per_byte = {worker: its.seconds / its.nbytes for worker, its in ready.items()}
        link, few = _observed_links(_with_new(self.transfers, work))
        told = replace(
            self,
            counting=_with_last(self.counting, work, per_byte),
            links=_with_last(self.links, work, link),
            pending={worker: its._replace(received={}) for worker, its in pending.items() if worker not in ready},
            transfers=few,
            moved=self.moved + sum(its.moved for its in work.values()),
            counted=self.counted + sum(its.nbytes for its in work.values()),
            most=max(self.most, len(work)),
        )
        last = dict.fromkeys(work, {"report": 1, "adapt": 2, "retire": 3}[reaction])
        last |= {worker: min(last[worker], 2) for worker in needed & last.keys()}
        return told._judge(last, per_byte.keys() | link.keys())

    def _judge(self, last: Mapping[str, int], observed: Set[str]) -> WorkerSpeeds:
        costs = self._costs(last)
        known = {worker: sum(cost) for worker, cost in costs.items() if cost is not None}
        typical = median(known.values()) if known else 0.0
        ordered = [sorted(each) for each in zip(*(cost for cost in costs.values() if cost is not None), strict=True)]
        staying = max(_LEAST_WORKERS, ceil(_STAYING * self.most))
        present = sum(self.verdicts.get(worker, Verdict()).step < 3 for worker in costs)
        verdicts = {}
        # One is retired at a time, the slowest first.
        for worker in sorted(costs, key=lambda worker: (-known.get(worker, 0.0), worker)):
            before, cost = self.verdicts.get(worker, Verdict()), costs[worker]
            if cost is None or len(known) < 2 or not typical:
                verdicts[worker] = before
                continue
            counting, link = (_median_without(own, values) for own, values in zip(cost, ordered, strict=True))
            cause: Cause = "link" if cost[1] - link > cost[0] - counting else "compute"
            now = replace(
                before,
                speed=(counting + link) / sum(cost),
                share=_share(before.share, typical / sum(cost)),
                rounds=before.rounds + 1,
                observed=before.observed + (worker in observed),
            )
            now = _step(now, cause, min(last[worker], 3 if present > staying else 2))
            present -= now.step == 3 > before.step
            verdicts[worker] = now
        return replace(self, verdicts=verdicts)

    def _costs(self, workers: Iterable[str]) -> dict[str, tuple[float, float] | None]:
        """Return the seconds of each worker to count a byte, and to move what a counted byte moves; None if unknown.

        Where one of them is unknown, it is that of its peers, which says nothing against the worker.
        """
        counting, links = (
            {worker: median_low(last) for worker, last in every.items() if len(last) >= _ENOUGH}
            for every in (self.counting, self.links)
        )
        count_s, move_s = (median(known.values()) if known else 0.0 for known in (counting, links))
        moved = self.moved / self.counted if self.counted else 0.0
        return {
            worker: (counting.get(worker, count_s), links.get(worker, move_s) * moved)
            if worker in counting or worker in links
            else None
            for worker in workers
        }

    def shares(self, workers: Sequence[str]) -> dict[str, float]:
        """Return the share of each of some workers that gets batches, 1 for the fastest; empty where all are equal.

        Examples
        --------
        >>> WorkerSpeeds({"a": Verdict(share=2.0), "b": Verdict()}).shares(["a", "b"])
        {'a': 1.0, 'b': 0.5}
        """
        found = {worker: self._verdict(worker).share for worker in workers if self._verdict(worker).step < 3}
        most = max(found.values(), default=1.0)
        if min(found.values(), default=1.0) == most and len(found) == len(workers):
            return {}
        return {worker: share / most for worker, share in found.items() if share >= LEAST_SHARE}

    def region_shares(self) -> dict[str, float]:
        """Return the share of regions of each worker that is slow: by its speed, then none."""
        return {
            worker: min(verdict.share, 1.0) if verdict.step == 1 else 0.0
            for worker, verdict in self.verdicts.items()
            if verdict.step
        }

    def slow(self) -> dict[str, Verdict]:
        """Return the verdicts of slow workers."""
        return {worker: verdict for worker, verdict in self.verdicts.items() if verdict.step}

    def _verdict(self, worker: str) -> Verdict:
        return self.verdicts.get(worker, Verdict())


def _with_new(before: Mapping[str, Transfers], work: Mapping[str, Work]) -> Mapping[str, Transfers]:
    """Return what was moved between each present worker and others, in either direction, with what is new."""
    found = {
        worker: {other: each for other, each in before.get(worker, {}).items() if other in work} for worker in work
    }
    for worker, its in work.items():
        for other, (nbytes, seconds) in its.received.items():
            for one, end in ((worker, other), (other, worker)) if other in work else ():
                earlier = found[one].get(end, (0.0, 0.0))
                found[one][end] = earlier[0] + nbytes, earlier[1] + seconds
    return found


def _observed_links(transfers: Mapping[str, Transfers]) -> tuple[dict[str, float], dict[str, Transfers]]:
    """Return how long each worker takes for a byte, over the better half of its links, and what is too little yet.

    A link has two ends: with a slow worker, only one of the links of all others is slow. So a worker is judged by two
    links at least, where there are as many.
    """
    least = min(_LEAST_LINKS, len(transfers) - 1)
    observed: dict[str, float] = {}
    few = dict(transfers)
    for worker, its in transfers.items():
        values = [seconds / nbytes for nbytes, seconds in its.values() if nbytes >= _LEAST_BYTES]
        if values and len(values) >= least:
            observed[worker] = median_low(values)
            few[worker] = {other: each for other, each in its.items() if each[0] < _LEAST_BYTES}
    return observed, few


def _with_last(
    before: Mapping[str, tuple[float, ...]], workers: Iterable[str], new: Mapping[str, float]
) -> dict[str, tuple[float, ...]]:
    """Return the last observations of present workers with new ones; the first one of a worker is left out."""
    found = {worker: before[worker] for worker in workers if worker in before}
    for worker, value in new.items():
        found[worker] = (*found[worker], value)[-_WINDOW:] if worker in found else ()
    return found


def _share(before: float, speed: float) -> float:
    """Return the share of a worker of some speed: the one before, unless the speed is clearly another."""
    low, high = _EVEN if before == 1 else _NEAR
    if low < speed < high:
        return 1.0
    return before if _NEAR[0] < speed / before < _NEAR[1] else speed


def _median_without(own: float, ordered: Sequence[float]) -> float:
    """Return the median of sorted values without one of them."""
    at, rest = bisect_left(ordered, own), len(ordered) - 1
    middle = (each + (each >= at) for each in ((rest - 1) // 2, rest // 2))
    return sum(ordered[each] for each in middle) / 2


def _step(now: Verdict, cause: Cause, last: int) -> Verdict:
    """Return the verdict with the next step where it is due, or without any where the worker has recovered."""
    if now.step == 0:
        below = _LINK_BELOW if cause == "link" else _BELOW[0]
        return replace(now, step=1, cause=cause, rounds=0, observed=0) if now.speed < below else now
    if now.speed > _RECOVERED and now.step < 3:
        return replace(now, step=0, cause="", rounds=0, observed=0)
    waited = now.rounds >= ROUNDS and now.observed >= _OBSERVED
    if now.step < last and waited and now.speed < _BELOW[now.step]:
        return replace(now, step=now.step + 1, rounds=0, observed=0)
    return now
