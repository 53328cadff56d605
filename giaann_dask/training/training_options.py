"""Validate the options of training, which do not change the resulting network, and choose how increments reach regions.

`giaann_dask.spec` specifies what is computed. Increments reach regions by a task for each region and batch, or by one
for each worker (`choose_exchange`). The choice follows the number of tasks, of which a scheduler does about 900 in a
second. Nothing of a cluster is needed to make it, so that it can be planned; both ways give the same network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from giaann_dask.cluster.worker_speeds import REACTIONS, Reaction
from giaann_dask.device import DeviceName
from giaann_dask.errors import OptionError, require_at_least, require_between, require_one_of, require_option
from giaann_dask.keywords import names_keywords

TrainOn = Literal["all", "misses"]
TRAIN_ON: tuple[TrainOn, ...] = get_args(TrainOn)
Order = Literal["corpus", "random", "least-overlap"]
Mode = Literal["batches", "published"]
WINDOW_LIMIT = 65536
Exchange = Literal["auto", "tasks", "workers"]
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)
TASKS_PER_S = 900.0
"""Tasks that Dask's scheduler does in a second, as measured."""

ROUNDS_TOGETHER = 16
"""Runs of rounds that become one: their sum is packed, which takes longest, so it is made late and once."""
SUMS_TOGETHER = 16
"""Sums of a rank that become one during a training."""

# Of the scheduler's time, for the tasks of regions; the rest is for encoding, counting and commits.
_SHARE = 0.25
# Bytes of a round's increments that are little: tasks for each region would take longer than what they add up.
_LITTLE = 2 << 20
# Sums for each run of a round of a region, with a task that measures each.
_SUMS = 2 * (1 + 1 / SUMS_TOGETHER) / ROUNDS_TOGETHER


@names_keywords
@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Options of the selection.

    Parameters
    ----------
    order : {"corpus", "random", "least-overlap"}, optional
        Order of sequences: that of the text (``corpus``), shuffled (``random``), or chosen so that sequences trained
        together touch different columns (``least-overlap``). By default ``least-overlap`` in the mode ``published``,
        else ``corpus``.
    window : int
        Sequences to choose from with batches of one sequence, 1 to 65536; wider windows overlap less.
    seed : int
        Seed of the shuffling, at least 0; only used for ``random``, except with batches of one sequence.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    order: Order | None = None
    window: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order is not None:
            require_one_of("order", self.order, get_args(Order))
        require_between(1, WINDOW_LIMIT, self, "window")
        require_option(self.seed >= 0, "seed", self.seed, "0 or more")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of dividing training into tasks, and of commits.

    Parameters
    ----------
    mode : {"batches", "published"}
        How sequences are counted: in batches, or one by one as published, which is slow and makes the same network. As
        published, each compute worker has one sequence at a time, whose columns are locked until its increments are in
        their regions, and counts it in a dense tensor of the columns and features of the sequence.
    batch_sequences : int
        Approximate number of sequences of a ``count_batch`` task: whole blocks are joined until they have this number,
        and split if that makes batches at least twice as large. 1 is exact: a round has one sequence for each worker,
        as published; that is much slower, so use it for small texts.
    block_characters : int
        Approximate number of characters of a ``tag`` and an ``encode`` task; up to four times as many later in a long
        text.
    selection : SelectionOptions
        Which sequences share a batch, and which train at the same time.
    accumulate : int
        Batches whose increments are summed on the worker before they are sent.
    exchange : {"auto", "tasks", "workers"}
        How increments reach the owners of regions: a task for each region and pair of batch and owner, or one for each
        batch and owner, which suits many regions or workers. By default chosen by the regions that a round touches.
    rounds_in_flight : int
        Rounds that may be in flight concurrently, if memory allows. With fewer than 4, a worker of a quarter of the
        others' speed leaves them idle.
    slow_workers : {"report", "adapt", "retire"}
        How to handle a worker that is slower than its peers: ``report`` logs its name; ``adapt`` also gives it less
        work, then no regions; ``retire`` also retires it if it only delays the others, which changes a cluster that
        others may use.
    commit_seconds : float
        Minimum time between two commits, never less than the duration of the first of them; there is always a commit at
        the end.
    commit_sequences : int, optional
        Also commit after this number of new sequences.
    keep_commits : int, optional
        After every commit, delete all but the last N commits and the data that only they need; by default all are kept.
    region_bytes : int
        A region is split when its decoded runs take more bytes than this, or than a worker can add up.
    hot_bytes : int, optional
        Bytes of decoded runs on all workers; beyond that runs are packed. By default 0.4 of the memory limits of the
        storage workers, less if these are small.
    max_sequences : int, optional
        Stop after this number of sequences of the input.
    device : {"auto", "cpu", "cuda"}
        Where pairs of tokens are summed: on workers with a GPU, on the processor's, or on both where that is quicker.
    train_on : {"all", "misses"}
        Train connections to all tokens, or only to those that the network does not predict (the misses).
    refresh_sequences : int
        Sequences predicted with one commit before the next one, with ``"misses"``.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> TrainingOptions(commit_sequences=100_000, keep_commits=3).batch_sequences
    8192
    """

    mode: Mode = "batches"
    batch_sequences: int = 8192
    block_characters: int = 262_144
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    accumulate: int = 1
    exchange: Exchange = "auto"
    rounds_in_flight: int = 4
    slow_workers: Reaction = "adapt"
    commit_seconds: float = 60.0
    commit_sequences: int | None = None
    keep_commits: int | None = None
    region_bytes: int = 1 << 28
    hot_bytes: int | None = None
    max_sequences: int | None = None
    device: DeviceName = "auto"
    train_on: TrainOn = "all"
    refresh_sequences: int = 10_000

    @property
    def published(self) -> bool:
        """Whether sequences are counted one by one."""
        return self.mode == "published"

    @property
    def ordered_selection(self) -> SelectionOptions:
        """The selection with the order that the mode has where none is chosen."""
        return replace(self.selection, order=self.selection.order or ("least-overlap" if self.published else "corpus"))

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, get_args(Mode))
        require_at_least(
            1,
            self,
            *("batch_sequences", "block_characters", "accumulate", "rounds_in_flight"),
            *("commit_sequences", "keep_commits", "region_bytes", "refresh_sequences", "max_sequences"),
        )
        require_at_least(0, self, "hot_bytes")
        require_option(self.commit_seconds > 0, "commit_seconds", self.commit_seconds, "more than 0")
        require_one_of("train_on", self.train_on, TRAIN_ON)
        require_one_of("exchange", self.exchange, EXCHANGES)
        require_one_of("slow_workers", self.slow_workers, REACTIONS)
        if self.published:
            self._take_single_sequences()

    def _take_single_sequences(self) -> None:
        """Set batches to one sequence, and refuse what contradicts one sequence for each compute worker."""
        for name, single in (("batch_sequences", 1), ("accumulate", 1), ("rounds_in_flight", None)):
            if getattr(self, name) not in (getattr(type(self), name), single):
                raise OptionError(
                    f"{name} {getattr(self, name)} with mode published",
                    "as many sequences at a time as there are compute workers, one for each",
                    f"leave {name} out, and choose the number of workers",
                    names=(name, "mode"),
                )
        object.__setattr__(self, "batch_sequences", 1)


@dataclass(frozen=True, kw_only=True)
class RoundShape:
    """Batches, owners and regions that a round touches.

    Attributes
    ----------
    batches : int
        Batches, or sums of accumulated batches.
    owners : int
        Workers that own regions which it touches.
    regions : int
        Regions that it touches.
    routes : int
        Pairs of a batch and an owner whose regions it touches.
    """

    batches: int
    owners: int
    regions: int
    routes: int

    @classmethod
    def full(cls, batches: int, owners: int, regions: int) -> RoundShape:
        """Return the shape of a round whose batches touch all regions.

        Examples
        --------
        >>> RoundShape.full(2, 4, 8).routes
        8
        """
        owners = min(owners, regions)
        return cls(batches=batches, owners=owners, regions=regions, routes=batches * owners)


def expected_tasks(shape: RoundShape, exchange: Exchange) -> float:
    """Return about how many tasks a round has, sums of earlier rounds included.

    Parameters
    ----------
    shape : RoundShape
        What it touches.
    exchange : {"tasks", "workers"}
        By which way.

    Examples
    --------
    >>> thousand = RoundShape.full(2, 2, 1024)
    >>> round(expected_tasks(thousand, "tasks")), round(expected_tasks(thousand, "workers"))
    (1171, 15)
    """
    counting = 2 * shape.batches + 1
    between = shape.owners > 1
    if exchange == "workers":
        # Where rounds touch different regions, each owner may have a sum to make in each of them.
        return counting + between * shape.batches + 4 * shape.owners
    return counting + between * shape.routes + shape.owners + (1 + _SUMS) * shape.regions


def choose_exchange(wanted: Exchange, shape: RoundShape, seconds: float = 1.0, nbytes: int | None = None) -> Exchange:
    """Return the way of a round.

    Parameters
    ----------
    wanted : {"auto", "tasks", "workers"}
        With ``"auto"`` a choice is made, else this is returned.
    shape : RoundShape
        What it touches.
    seconds : float
        How long its batches take to count; rounds of default size take about a second.
    nbytes : int, optional
        Of its increments, where one worker owns all regions and the training has no more than a block of text.

    Returns
    -------
    {"tasks", "workers"}
        By workers where tasks would take more than a quarter of the scheduler's time, and workers less than half of
        these tasks; also where the increments have less than two mebibytes, if that is given.

    Examples
    --------
    >>> choose_exchange("auto", RoundShape.full(2, 2, 8)), choose_exchange("auto", RoundShape.full(2, 2, 1024))
    ('tasks', 'workers')
    >>> choose_exchange("auto", RoundShape.full(100, 100, 400))
    'workers'
    >>> choose_exchange("auto", RoundShape.full(1, 1, 4), nbytes=10_000)
    'workers'
    """
    if wanted != "auto":
        return wanted
    if nbytes is not None and nbytes < _LITTLE and shape.regions > 1:
        return "workers"
    tasks, workers = expected_tasks(shape, "tasks"), expected_tasks(shape, "workers")
    return "workers" if tasks > _SHARE * TASKS_PER_S * seconds and workers < tasks / 2 else "tasks"
