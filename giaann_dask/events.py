"""Define the events that progress bars, histories and logs subscribe to.

There are events of encoding, training, committing, evaluating and generation. Lower layers emit them and never call a
user interface; `giaann_dask.cli` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockEncoded:
    """A block of text has been divided into columns.

    Attributes
    ----------
    sequences : int
        Counted sequences of the block.
    characters : int
        Size of the text it came from, of a corpus an estimate.
    read : int
        Characters of the inputs up to the end of the block, with those of text that is left out.
    """

    sequences: int
    characters: int
    read: int = 0


@dataclass(frozen=True)
class RoundIntegrated:
    """All increments of a round are part of their regions.

    Attributes
    ----------
    sequences : int
        Counted sequences of the round; an equal share where blocks are divided into several rounds.
    round : int
        Number of the round in the network, from 0.
    increment_bytes : int
        Bytes of the increments that went to regions; accumulated batches are one increment.
    messages : int
        Pairs of an increment and a region that it touches.
    column_touches, shared_touches : int
        Columns touched by the increments, each counted once for each increment, and how many of these
        touches overlap with another increment of the round.
    busiest_region_share : float
        Share of the column touches that goes to the busiest region.
    connections : int
        Connections that were strengthened, each counted once for each increment.
    rounds_in_flight, rounds_counting : int
        Rounds that are still under way, and those of them whose increments are not all computed; the
        others are on their way into their regions.
    """

    sequences: int
    round: int = 0
    increment_bytes: int = 0
    messages: int = 0
    column_touches: int = 0
    shared_touches: int = 0
    busiest_region_share: float = 0.0
    connections: int = 0
    rounds_in_flight: int = 0
    rounds_counting: int = 0


@dataclass(frozen=True)
class DataMoved:
    """Bytes that tasks of regions used in place or received, since the event of the round before.

    What rounds in flight have moved so far is in the event of an earlier one; after the last commit comes the rest.

    Attributes
    ----------
    round : int
        Number of the round in the network, from 0.
    stayed_bytes : int
        Increments and runs that were in the memory of the worker that used them.
    increment_bytes : int
        Increments that were sent to the owners of their regions from other workers.
    stolen_bytes : int
        Runs that were sent to another worker that had less to do, while regions kept their owners.
    reassigned_bytes : int
        Runs that were sent to new owners or read by them from the store, after workers had left or joined.
    read_bytes : int
        Runs that were read from the store otherwise: those of an earlier training, or for want of memory.
    spilled_bytes : int
        Results that workers have written to their local disks to stay within their memory limits.
    other_bytes : int
        Blocks of text, placements and small results that were sent to other workers.
    """

    round: int = 0
    stayed_bytes: int = 0
    increment_bytes: int = 0
    stolen_bytes: int = 0
    reassigned_bytes: int = 0
    read_bytes: int = 0
    spilled_bytes: int = 0
    other_bytes: int = 0


@dataclass(frozen=True)
class WorkerJudged:
    """Changed judgement of a worker that is slower than its peers.

    Attributes
    ----------
    round : int
        Number of the round in the network after which it was judged, from 0.
    worker : str
        Its address.
    step : str
        Of `giaann_dask.cluster.worker_speeds.STEPS`.
    cause : str
        ``compute`` or ``link``; empty for a worker that has recovered.
    speed : float
        Relative to the median of its peers.
    """

    round: int
    worker: str
    step: str
    cause: str
    speed: float


@dataclass(frozen=True)
class MemoryMeasured:
    """Content of the storage workers after a round.

    Attributes
    ----------
    regions : int
        Regions of the network.
    hot_bytes, packed_bytes : int
        Runs that are decoded, and runs in their encoded form, as far as their sizes are known.
    process_bytes : int
        Resident size of the workers' processes.
    spilled_bytes : int
        What they have written to their local disks to stay within their memory limits.
    """

    regions: int = 0
    hot_bytes: int = 0
    packed_bytes: int = 0
    process_bytes: int = 0
    spilled_bytes: int = 0


@dataclass(frozen=True)
class RegionMeasured:
    """Content of a region.

    Attributes
    ----------
    region : int
        Its number.
    connections, neurons : int
        Of its runs, as far as their sizes are known; what several runs hold counts as often.
    nbytes : int
        Bytes of its runs in the form in which they are held.
    runs : int
        Runs that have not been added up.
    touches : int
        Column touches of this training so far, see `RoundIntegrated`.
    task : str
        Key of the task whose result is its largest run, so that it can be found on the cluster; empty
        where there is none, as at the end of training.
    owner : str
        Address of the worker that the region is assigned to; empty without workers.
    """

    region: int
    connections: int
    neurons: int
    nbytes: int
    runs: int
    touches: int
    task: str = ""
    owner: str = ""


@dataclass(frozen=True)
class RegionsMeasured:
    """Content of each region, every few seconds of training, and at its end as of the last commit.

    Attributes
    ----------
    regions : tuple of RegionMeasured
        All of them, in the order of their numbers.
    """

    regions: tuple[RegionMeasured, ...]


@dataclass(frozen=True)
class Committed:
    """A commit has been written.

    Attributes
    ----------
    commit : str
        Its identity.
    sequences : int
        Sequences that the network holds as of it.
    seconds : float
        Time it took.
    requests, nbytes : int
        Objects that it wrote, a request each (in a folder files), and the bytes of its chunks and manifests.
    """

    commit: str
    sequences: int
    seconds: float
    requests: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class SequencesEvaluated:
    """Predictions have been made for some sequences.

    Attributes
    ----------
    sequences : int
        How many more.
    matches, steps : int
        Matches and prediction steps among them.
    """

    sequences: int
    matches: int
    steps: int


@dataclass(frozen=True)
class StageAdvanced:
    """A stage of known length has made progress.

    Attributes
    ----------
    stage : str
        Its name, one word.
    done, total : int
        How much of it is done, and how much there is.
    unit : str
        What is counted.
    """

    stage: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class PromptsAdvanced:
    """Prompts that are continued token by token have begun, ended, or are some tokens further.

    Attributes
    ----------
    entered, left : int
        Prompts that have begun, and prompts that have come to their end or are not wanted any more.
    tokens : int
        Tokens that have been generated.
    """

    entered: int = 0
    left: int = 0
    tokens: int = 0


Event = (
    BlockEncoded
    | RoundIntegrated
    | DataMoved
    | WorkerJudged
    | MemoryMeasured
    | RegionsMeasured
    | Committed
    | SequencesEvaluated
    | StageAdvanced
    | PromptsAdvanced
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observe nothing."""


def notify_all(*observers: Observer) -> Observer:
    """Return an observer that notifies all of these, in order."""

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe
