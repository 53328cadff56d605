"""Pack text that a network was trained on into a signed bundle.

A network stores sums, of which no sample can be checked. So the text is read and counted a second time, group by
group, and the sum of all groups is compared with the network before the bundle is signed. A group is counted with the
dictionaries of its bundle, which begin with the base's, and without regions, so that its increments depend on its text
and the island alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from distributed import Client, Future

from giaann_dask.algebra.differences import submit_differences
from giaann_dask.algebra.parts import divide_parts, require_alike, submit_parts
from giaann_dask.algebra.removal import find_parts
from giaann_dask.cluster import attempt, query_scheduler, result, results, task_key
from giaann_dask.encoding.sources import SourceOptions, read_units
from giaann_dask.encoding.stream import EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import BundleError, OptionError, StoreDamagedError
from giaann_dask.events import BlockEncoded, Observer, ignore
from giaann_dask.islands.bundle import BundleGroup, BundleWriter, writing_bundle
from giaann_dask.islands.definition import Island, public_of
from giaann_dask.islands.pack_options import PackOptions
from giaann_dask.models import totals_of
from giaann_dask.models.totals import GroupCounts
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.renaming import key_renaming
from giaann_dask.runs.run import RegionRun, Run, RunSize
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.ledger import Ledger, LedgerEntry
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.regions import Regions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """Contents of a bundle that was packed.

    Attributes
    ----------
    bundle : str
        The file.
    signer : str
        Name of the key.
    groups, parts : int
        Groups, and parts of text in them.
    sequences, tokens, connections : int
        Counts; connections are those of each group.
    bytes : int
        Size of the file.
    complete : bool
        Whether the network was trained on nothing else.
    """

    bundle: str
    signer: str
    groups: int
    parts: int
    sequences: int
    tokens: int
    connections: int
    bytes: int
    complete: bool

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class CountedGroup:
    """Increments of a group of parts of text, packed, and the counts that determine their totals."""

    run: PackedRegionRun
    counts: GroupCounts


def count_block_apart(block: EncodedBlock, specification: Specification) -> CountedGroup:
    """Return the increments of the sequences of one block (a task)."""
    found = tasks.count_batch([block], Placement(1), specification, ())
    run = found.get(0) or RegionRun(Run.empty(), Run.empty())
    return CountedGroup(tasks.pack_run(run), totals_of(specification).count_group([block]))


class _Counted(NamedTuple):
    """Group that is being counted: its ledger, its `CountedGroup`, and its text where that is offered.

    The bundle has the parts with sequences alone: of others no increments could show anything.
    """

    entries: tuple[LedgerEntry, ...]
    group: Future
    text: list[Part] | None

    @property
    def shown(self) -> list[bool]:
        """Whether the bundle has each part."""
        return [entry.sequences > 0 for entry in self.entries]


def require_member(reader: CommitReader, island: Island) -> None:
    """Raise a `SpecificationError` where a network does not count as an island says, or is no sum over its text."""
    reader.manifest().require_sum(reader.path)
    stored = reader.manifest().specification.without_regions(), reader.ever_pos().identity()
    wanted = island.specification.without_regions(), island.ever_pos.identity()
    remedy = "make the network with giaann-dask island join"
    require_alike(reader.path, stored, "the island file", wanted, remedy)


@attempt()
def pack_bundle(
    client: Client,
    reader: CommitReader,
    island: Island,
    inputs: Sequence[Source],
    sources: SourceOptions,
    key: Ed25519PrivateKey,
    path: Path,
    *,
    options: PackOptions,
    observer: Observer = ignore,
) -> PackReport:
    """Count text group by group, compare it with the network that was trained on it, and write a signed bundle.

    Parameters
    ----------
    client : Client
        Where the text is counted.
    reader : CommitReader
        The network.
    island : Island
        What it shares with others.
    inputs : sequence of str or MemoryInput
        Text that the network was trained on completely.
    sources : SourceOptions
        How it is read; with the island's specification and lexicon.
    key : Ed25519PrivateKey
        One of the island's.
    path : Path
        File of the bundle.
    options : PackOptions
        Size of groups, and whether their text is offered.
    observer : callable, optional
        Notified of every group.

    Raises
    ------
    SpecificationError
        If the network does not count as the island says.
    OptionError
        If the key is not listed, or the network was not trained on the text, or in part.
    StoreDamagedError
        If the network is not the sum of what the text gives.
    """
    signer = island.name_of(public_of(key))
    if signer is None:
        raise OptionError(
            f"key belongs to {public_of(key)[:16]}",
            f"that of {' or '.join(sorted(island.keys)) or 'a name in the island file'}",
            "ask the owner of the network to list it (giaann-dask island keys)",
            names=("key",),
        )
    require_member(reader, island)
    if options.offer_text:
        require_rereadable(inputs, "a bundle that offers its text")
    vocabulary, counted, connections = island.vocabulary(), list[_Counted](), 0
    with writing_bundle(path) as bundle:
        for each in _count(client, island, vocabulary, inputs, sources, options, observer):
            if any(each.shown):
                connections += _write(bundle, each)
            counted.append(each._replace(text=None))
        entries = tuple(entry for each in counted for entry in each.entries)
        if counted and not bundle.groups:
            raise OptionError("text without a long enough sequence", "text with sequences", "name other text")
        left = len(reader.ledger()) - len(find_parts(reader, entries))
        _require_sum(client, reader, vocabulary, [each.group for each in counted], whole=not left)
        names = {
            "concepts": vocabulary.concepts[len(island.concepts) :],
            "features": vocabulary.features[1 + len(island.features) :],
        }
        bundle.finish(names, island, sources.tagger, key)
    return PackReport(
        bundle=str(path),
        signer=signer,
        groups=bundle.groups,
        parts=sum(sum(each.shown) for each in counted),
        sequences=sum(entry.sequences for entry in entries),
        tokens=bundle.tokens,
        connections=connections,
        bytes=path.stat().st_size,
        complete=not left,
    )


def _count(
    client: Client,
    island: Island,
    vocabulary: Vocabulary,
    inputs: Sequence[Source],
    sources: SourceOptions,
    options: PackOptions,
    observer: Observer,
) -> Iterator[_Counted]:
    """Yield the groups of some text in order; a bounded number of them is being counted."""
    limits = StreamOptions(block_characters=options.group_characters, words=False)
    stream = EncodingStream(client, vocabulary, sources, limits, Ledger())
    text = _texts(inputs, sources) if options.offer_text else None

    def submitted() -> Iterator[tuple[StreamedBlock, _Counted]]:
        for block in stream.blocks(inputs):
            if entries := tuple(update.entry for update in block.ledger):
                key = task_key("count apart", block.encoded.key, island.identity)
                group = client.submit(count_block_apart, block.encoded, island.specification, key=key)
                yield block, _Counted(entries, group, None if text is None else [next(text) for _ in entries])

    for block, each in some_ahead(client, submitted()):
        result(each.group)
        observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))
        yield each


def some_ahead(client: Client, submitted: Iterable[Item]) -> Iterator[Item]:
    """Yield what comes with tasks, in order, after the tasks of the next ones are submitted: as many as are run."""
    pending: deque[Item] = deque()
    for each in submitted:
        pending.append(each)
        if len(pending) > 1 + sum(query_scheduler(client, "ncores").values()):
            yield pending.popleft()
    yield from pending


def _texts(inputs: Sequence[Source], sources: SourceOptions) -> Iterator[Part]:
    """Yield the parts of some inputs again, each once; raise an error where one is a corpus, which has no text."""
    passed: set[bytes] = set()
    for unit in read_units(inputs, sources):
        if not isinstance(unit.content, Part):
            raise OptionError("offer_text with a corpus, which has no text", "the text itself", "name its files")
        if unit.identity not in passed:
            passed.add(unit.identity)
            yield unit.content


def _write(bundle: BundleWriter, counted: _Counted) -> int:
    """Write a group and return its connections."""
    group: CountedGroup = result(counted.group)
    text = None if counted.text is None else [*compress(counted.text, counted.shown)]
    bundle.add(BundleGroup((*compress(counted.entries, counted.shown),), group.counts), group.run, text)
    return len(group.run.connections)


def _require_sum(
    client: Client, reader: CommitReader, vocabulary: Vocabulary, groups: Sequence[Future], *, whole: bool
) -> None:
    """Check that a network holds what groups add up to, and nothing else where they are the whole of its text."""
    runs = [client.submit(increments_of, group, key=task_key("increments", group.key)) for group in groups]
    placement = reader.placement()
    renaming = key_renaming(reader.manifest().specification, vocabulary, reader.vocabulary())
    regions = Regions(client, placement, 0)
    parts = divide_parts(regions.tasks.submitter, runs, placement, renaming)
    differences = submit_differences(regions, submit_parts(client, reader, placement), parts)
    try:
        sizes: list[RunSize] = results(
            [client.submit(tasks.measure_run, each, key=task_key("measure", each.key)) for each in differences.values()]
        )
    except (StoreDamagedError, BundleError) as error:
        raise _no_sum(reader) from error
    if whole and any(size.connections or size.neurons for size in sizes):
        raise _no_sum(reader)


def increments_of(group: CountedGroup) -> PackedRegionRun:
    """Return the increments of a counted group (a task)."""
    return group.run


def _no_sum(reader: CommitReader) -> StoreDamagedError:
    return StoreDamagedError(
        f"network {reader.path} is not the sum of the counts of this text",
        "a network that was trained on all tokens of it, with the same tagger",
        "train a new network that was joined to the island",
    )
