"""Seeded rounds of workers with noise and uneven work, some of which become slow, as observations of their speeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from giaann_dask.cluster.worker_speeds import ROUNDS, Reaction, Work, WorkerSpeeds

Kind = Literal["none", "compute", "link", "moment"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Of a worker at full speed: seconds to count a byte of increments, and to move one; bytes of a batch.
COUNT_S, MOVE_S, BATCH = 3e-8, 1e-8, 2e7
# Share of a batch that a worker counts which gets none.
AGAIN = 0.4
# Spread of a task's work, and of its time by other programs; one task in so many takes three times as long.
UNEVEN, NOISE, HICCUP = 0.5, 0.15, 1 / 50


@dataclass(frozen=True)
class Fault:
    """What happens to one worker: it takes so many times as long, from one round until another."""

    kind: Kind
    times: float = 1.0
    begin: int = 0
    end: float = float("inf")

    def slows(self, kind: Kind, number: int) -> float:
        """Return how many times as long a stage takes in a round."""
        slowed = "compute" if self.kind == "moment" else self.kind
        return self.times if kind == slowed and self.begin <= number < self.end else 1.0


def judged(seed: int, workers: int, rounds: int, fault: Fault, reaction: Reaction = "retire") -> Iterator[WorkerSpeeds]:
    """Yield the judgement after each round of workers of which the first has a fault.

    Each worker gets batches as its share says. One that gets none counts a part of one now and then, until it is to be
    retired.
    """
    rng = np.random.default_rng(seed)
    names = [f"tcp://{number}" for number in range(workers)]
    speeds, owed = WorkerSpeeds(), dict.fromkeys(names, 0.0)
    for number in range(rounds):
        shares = speeds.shares(names) or dict.fromkeys(names, 1.0)
        counted = dict.fromkeys(names, 0.0)
        for name, share in shares.items():
            owed[name] += share
            counted[name], owed[name] = float(int(owed[name] + 1e-9)), owed[name] % 1.0
        for name in names:
            if name not in shares and number % ROUNDS == 0 and speeds.verdicts[name].step < 3:
                counted[name] = AGAIN
        work, owned = {}, speeds.region_shares()
        for name in names:
            of = fault if name == names[0] else Fault("none")
            nbytes = counted[name] * BATCH * float(rng.lognormal(0, UNEVEN))
            hiccup = 3.0 if rng.random() < HICCUP else 1.0
            seconds = COUNT_S * nbytes * float(rng.lognormal(0, NOISE)) * hiccup * of.slows("compute", number)
            # The first task loads compiled code.
            seconds += 2.0 * (number == 0) * (nbytes > 0)
            received, size = {}, BATCH / workers
            for other in names:
                ends = fault.slows("link", number) if names[0] in (name, other) else 1.0
                # Increments go to the owners of regions; those that are counted again, to any worker.
                if other != name and counted[other] and (owned.get(name, 1.0) or counted[other] == AGAIN):
                    received[other] = size, MOVE_S * size * float(rng.lognormal(0, 2 * NOISE)) * ends
            work[name] = Work(nbytes, seconds, size * (workers - 1), received)
        speeds = speeds.review(work, reaction)
        yield speeds


@dataclass
class Detection:
    """Named workers that had a fault, those that had none, faults that were not named, and rounds until they were."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    wrong_cause: int = 0
    rounds: tuple[int, ...] = ()

    @property
    def precision(self) -> float:
        """Share of the named workers that had a fault."""
        return self.right / max(self.right + self.wrong, 1)

    @property
    def recall(self) -> float:
        """Share of the faults that were named."""
        return self.right / max(self.right + self.missed, 1)


def detect(seeds: range, rounds: int = 40) -> Detection:
    """Return what is detected of a fault drawn for each seed: none, compute or link, or a moment, of any size."""
    found = Detection()
    for seed in seeds:
        rng = np.random.default_rng([seed, 1])
        kind = KINDS[seed % len(KINDS)]
        workers = int(rng.choice([3, 4, 8, 16]))
        # A link is worth naming where it costs as much as counting.
        times = float(rng.uniform(2.5, 12) * (4 if kind == "link" else 1))
        begin = int(rng.integers(0, 20))
        fault = Fault(kind, times, begin, begin + 2 if kind == "moment" else float("inf"))
        named: dict[str, tuple[int, str]] = {}
        for number, speeds in enumerate(judged(seed, workers, rounds, fault)):
            for worker, verdict in speeds.slow().items():
                named.setdefault(worker, (number, verdict.cause))
        victim = named.pop("tcp://0", None)
        found.wrong += len(named) + (victim is not None and kind not in ("compute", "link"))
        if kind in ("compute", "link"):
            found.right += victim is not None
            found.missed += victim is None
            if victim is not None:
                found.wrong_cause += victim[1] != kind
                found.rounds += (victim[0] - fault.begin + 1,)
    return found


if __name__ == "__main__":
    for place, name in enumerate(KINDS):
        found = detect(range(place, 2000, len(KINDS)))
        counts = f"{found.right} named, {found.missed} missed, {found.wrong_cause} other cause, {found.wrong} wrong"
        rounds = np.percentile(found.rounds, [50, 90, 100]).tolist() if found.rounds else ()
        print(f"{name}: {counts}, rounds {rounds}")
