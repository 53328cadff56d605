"""Rounds: batches of sequences become increments, and increments become runs of regions.

Covers: which tasks a round has up to its increments. Does not cover: adding them to regions
(`regions`), where the blocks come from and when to commit (`trainer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distributed import Client, Future

from giaann_dask.cluster import task_key
from giaann_dask.encoding.stream import StreamedBlock
from giaann_dask.network.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.training import tasks
from giaann_dask.training.regions import Regions, Snapshot
from giaann_dask.training.selection import SelectionOptions


@dataclass(frozen=True, eq=False)
class Round:
    """A round that has been submitted.

    Attributes
    ----------
    blocks : tuple of StreamedBlock
        What it trains.
    sizes : tuple of Future
        `RunSize` of each batch's increments.
    integrated : tuple of Future
        The newest run of each region.
    snapshot : Snapshot
        The regions after the round.
    overlap : Future or None
        `BatchOverlap` of its batches; None in corpus order, where nothing is selected.
    """

    blocks: tuple[StreamedBlock, ...]
    sizes: tuple[Future, ...]
    integrated: tuple[Future, ...]
    snapshot: Snapshot
    overlap: Future | None


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """What the rounds of a training run have in common.

    Attributes
    ----------
    specification : Specification
        What a batch computes.
    device : str
        Device of the dense step.
    selection : SelectionOptions
        Which sequences of a round train in one batch.
    accumulate : int
        So many consecutive batches are added up before their increments travel.
    """

    specification: Specification
    device: str = "auto"
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    accumulate: int = 1


class Rounds:
    """Submits rounds to the regions of a network.

    Parameters
    ----------
    client : Client
        Where tasks run.
    regions : Regions
        What the rounds add to.
    options : RoundOptions
        What they have in common.
    """

    def __init__(self, client: Client, regions: Regions, options: RoundOptions) -> None:
        self._client = client
        self._regions = regions
        self._options = options
        self.tasks = 0
        self.messages = 0

    def submit(self, batches: Sequence[Sequence[StreamedBlock]]) -> Round:
        """Submit the tasks of one round.

        Parameters
        ----------
        batches : sequence of sequence of StreamedBlock
            Each batch is one ``connect`` task.

        Returns
        -------
        Round
        """
        regions, accumulate = self._regions, self._options.accumulate
        regions.deal()
        blocks = tuple(block for batch in batches for block in batch)
        self._place([block.encoded for block in blocks])
        overlap = None
        if self._options.selection.order == "corpus":
            increments = [self._connect([block.encoded for block in batch]) for batch in batches]
        else:
            increments, overlap = self._connect_selected([block.encoded for block in blocks], len(batches))
        sizes = [self._submit("measure", tasks.measure_increments, part, key_of=(part.key,)) for part in increments]
        travelling = [
            self._accumulate(increments[start : start + accumulate]) for start in range(0, len(increments), accumulate)
        ]
        self.messages += len(travelling) * len(regions.runs)
        integrated = regions.integrate(travelling)
        return Round(blocks, tuple(sizes), tuple(integrated), regions.snapshot(), overlap)

    def _place(self, blocks: Sequence[Future]) -> None:
        """Choose regions for the columns that the round uses for the first time."""
        kind, columns = self._options.specification.placement, self._regions.columns
        if kind == "hash":
            return
        usages = [self._submit("use", tasks.use, block, key_of=block.key) for block in blocks]
        key = (_identity(columns), [usage.key for usage in usages], kind)
        self._regions.columns = self._submit("place", tasks.place, columns, usages, kind, key_of=key)

    def _connect(self, blocks: list[Future]) -> Future:
        key = ([block.key for block in blocks], *self._rule())
        return self._compute(tasks.connect, blocks, self._regions.columns, self._connecting(), key_of=key)

    def _connect_selected(self, blocks: list[Future], batches: int) -> tuple[list[Future], Future]:
        """Let every batch train the sequences of the whole round that are selected for it."""
        selection, columns, divisions = self._options.selection, self._regions.columns, self._regions.divisions
        touches = [self._submit("touch", tasks.touch, block, key_of=(block.key,)) for block in blocks]
        identity = ([block.key for block in blocks], batches, selection, *self._rule())
        arguments = (touches, batches, selection, columns, divisions)
        chosen = self._submit("select", tasks.select, *arguments, key_of=identity)
        parts = [(blocks, chosen, number, columns, self._connecting()) for number in range(batches)]
        increments = [
            self._compute(tasks.connect_selected, *part, key_of=(chosen.key, number))
            for number, part in enumerate(parts)
        ]
        return increments, self._submit("measure", tasks.measure_selection, chosen, key_of=chosen.key)

    def _connecting(self) -> tasks.ConnectOptions:
        return tasks.ConnectOptions(self._options.specification, self._regions.divisions, self._options.device)

    def _rule(self) -> tuple[object, ...]:
        """Return what besides the sequences determines the increments of a batch."""
        return _identity(self._regions.columns), self._connecting()

    def _accumulate(self, increments: Sequence[Future]) -> Future:
        if len(increments) == 1:
            return increments[0]
        return self._compute(tasks.accumulate, *increments, key_of=[f.key for f in increments])

    def _compute(self, function: Callable[..., object], *arguments: object, key_of: object) -> Future:
        """Submit a task that computes."""
        self.tasks += 1
        key = task_key(function.__name__.partition("_")[0], key_of)
        return self._client.submit(function, *arguments, key=key, **self._regions.roles.computing())

    def _submit(self, name: str, function: object, *arguments: object, key_of: object) -> Future:
        """Submit a small task that goes where its arguments are."""
        self.tasks += 1
        return self._client.submit(function, *arguments, key=task_key(name, key_of))


def _identity(columns: Placement | Future) -> object:
    return columns.key if isinstance(columns, Future) else columns
