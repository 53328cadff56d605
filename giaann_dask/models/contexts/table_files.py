"""Open the tables of a commit, in tasks or here, and keep them in files that later processes map into memory.

Building the tables reads every count of the network. Commits do not change, so the process that builds them first
stores them in the user's cache folder for all later ones, of which each reads only the pages that its contexts lie in;
to other processes they are sent by name. Only the user can read the folder. It can be removed at any time, and tables
of commits that were removed have to be (`remove_tables`), as they have all words and counts. Tables are named by the
place of the network, the commit and its content, so that another network with a commit of that name has tables of its
own. `giaann_dask.models.contexts.tables` builds the tables.

Files have checksums. Those of counts, which are most of the bytes, are of blocks that are compared when they are first
read; all others are compared when tables are opened. Tables that are not what was written are built and stored again.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import errno
import hashlib
import json
import math
import mmap
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.cluster.regions import held_runs, region_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.cluster.waiting import ask_workers, fetch
from giaann_dask.dask_types import measure
from giaann_dask.errors import GiaannError, StoreDamagedError, StoreRefusedError
from giaann_dask.keys import Integers
from giaann_dask.local_files import private_cache, user_cache
from giaann_dask.models.contexts.changed_tables import ChangedCounts, changed_tables
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.packed_counts import PackedCounts
from giaann_dask.models.contexts.tables import CountRows, PackedTables, WordTables, build_tables
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.run import Run, join_ranges
from giaann_dask.runs.summing import decode_blocks
from giaann_dask.storage import checksum_of, checksum_of_json, first_line, writing
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import StoredRun
from giaann_dask.text.names import Names, pack_strings

if TYPE_CHECKING:
    from distributed import Client, Future

# Changes with the meaning of any array, and with the names of folders.
_VERSION = 5
_FOLDER = "tables"
_INCOMPLETE = "incomplete-"
# Place, commit, content and version.
_NAME = re.compile(r"([0-9a-f]{16})-([^-]+)-([0-9a-f]+)-([0-9]+)")
# Smaller tables are built as fast as they are mapped.
_LEAST_BYTES = 1 << 22
# Bytes of all stored tables; those that have not been used for the longest time are removed.
_MOST_BYTES = 4 << 30
# Share of the free disk that the tables of one commit may take.
_DISK_SHARE = 0.25
# Connections of the runs that differ between a commit and another one from whose tables its own are made, by those of
# the other one: beyond that, building them takes about as long. And how many other commits are tried.
_CHANGED_SHARE, _TRIED = 1 / 16, 4
_HEADER = "tables.json"
_WORDS = ("word_keys", "word_order", "base", "share", "counts", "preceding", "spelled")
_COUNTS = tuple(field.name for field in fields(PackedCounts))
# Arrays that are compared with their checksums block by block, and the bytes of a block: what one row needs is read.
_IN_BLOCKS = ("bits", "begins")
_BLOCK = 1 << 13
# Of each live region the keys of the tasks whose results are its runs, as `PackedRegionRun`, where workers had all runs
# of a commit in memory. What no worker has any more is read from the store.
HeldRuns: TypeAlias = Mapping[int, tuple[str, ...]]
_STORED: HeldRuns = {}


class CommitTables:
    """The tables of a commit, which are opened where they are first needed.

    Where they are stored in files, they are pickled as the place of the commit. So another process of the machine maps
    the files, and one of another machine, which has none, builds the tables there.

    Parameters
    ----------
    path, commit : str
        Of the commit; see `place_of`.
    tables : PackedTables, optional
        Its tables, if they are open.
    held : HeldRuns
        See `read_tables`.
    """

    def __init__(self, path: str, commit: str, tables: PackedTables | None = None, held: HeldRuns = _STORED) -> None:
        self._path, self._commit, self._tables, self._held = path, commit, tables, held

    @property
    def tables(self) -> PackedTables:
        """The tables."""
        if self._tables is None:
            self._tables = read_tables(self._path, self._commit, self._held)
        return self._tables

    def _sent(self) -> PackedTables | None:
        """Return the tables if they have to be sent; tables with a base are made again in less time."""
        is_changed = self._tables is not None and isinstance(self._tables.counts, ChangedCounts)
        return None if is_changed or has_tables(self._path, self._commit) else self._tables

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make these tables in another process."""
        return CommitTables, (self._path, self._commit, self._sent(), self._held)

    def __sizeof__(self) -> int:
        """Return the bytes that are sent to another process, from which Dask estimates how long that takes."""
        sent = self._sent()
        return object.__sizeof__(self) + (0 if sent is None else measure(sent))


def opened(tables: PackedTables | CommitTables) -> PackedTables:
    """Return tables that a task was given."""
    return tables.tables if isinstance(tables, CommitTables) else tables


def place_of(reader: CommitReader) -> tuple[str, str]:
    """Return the path and the commit of a reader, the arguments of `read_tables`."""
    return str(reader.path), reader.commit


def read_tables(path: str, commit: str, held: HeldRuns = _STORED) -> PackedTables:
    """Return the tables of a commit in a task; `path` and `commit` are those of `place_of`, else as `commit_tables`."""
    return commit_tables(open_commit(path, commit), held)


def commit_tables(reader: CommitReader, held: HeldRuns = _STORED) -> PackedTables:
    """Return the tables of a commit; see `giaann_dask.models.contexts.table_files`.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    held : HeldRuns
        Runs in the memory of workers, from which the tables are built, a block of rows at a time; the same tables as
        those of the stored runs.
    """
    if not has_tables(*place_of(reader)) and (changed := _changed_tables(reader)) is not None:
        return changed
    return open_tables(*place_of(reader), reader.fingerprint, lambda: build_commit_tables(reader, held))


def build_commit_tables(reader: CommitReader, held: HeldRuns = _STORED) -> PackedTables:
    """Return the tables of a commit, built from all its counts; see `commit_tables`."""
    regions = (_read_blocks(place, held.get(region, ())) for region, place in region_places(reader))
    blocks = chain.from_iterable(regions)
    return build_tables(_read_ahead(blocks), reader.saved_vocabulary().features[1:])


def _changed_tables(reader: CommitReader) -> PackedTables | None:
    """Return the tables of a commit by stored ones of another commit of its network that differs little, if any."""
    path, _ = place_of(reader)
    # What cannot be read of other commits, which may be removed meanwhile, is not needed.
    with suppress(OSError, GiaannError):
        for other in _stored_commits(path)[:_TRIED]:
            before = open_commit(path, other)
            added, removed = (_runs_beside(*pair) for pair in ((reader, before), (before, reader)))
            limit = before.manifest().connections * _CHANGED_SHARE
            if added.connections + removed.connections > limit:
                continue
            if reader.manifest().pruned_below or before.manifest().pruned_below:
                continue
            build = partial(build_commit_tables, before)
            tables = _read(private_cache(_FOLDER) / _name(path, other, before.fingerprint()), build)
            words = reader.saved_vocabulary().features[1:]
            if tables is not None and (changed := changed_tables(tables, added.decoded(), removed.decoded(), words)):
                return changed
    return None


class _RunsBeside(NamedTuple):
    """Runs that a commit has and another one has not.

    Attributes
    ----------
    reader : CommitReader
        The commit.
    runs : list of StoredRun
        The runs.
    """

    reader: CommitReader
    runs: list[StoredRun]

    @property
    def connections(self) -> int:
        """Number of connections of all these runs."""
        return sum(run.connections for run in self.runs)

    def decoded(self) -> Iterator[Run]:
        """Yield the connections of each run."""
        for run in self.runs:
            yield unpack(self.reader.connections(run.identity))


def _runs_beside(reader: CommitReader, other: CommitReader) -> _RunsBeside:
    """Return the runs of a commit that another commit of the same network does not have."""
    known = {(other.commit_of(run.identity), run.identity) for run in other.manifest().runs}
    runs = [run for run in reader.manifest().runs if (reader.commit_of(run.identity), run.identity) not in known]
    return _RunsBeside(reader, runs)


def _read_blocks(place: tuple[str, str, list[str]], keys: Sequence[str]) -> Iterator[Run]:
    """Yield the counts of a region in blocks of rows, from the memory of workers if they have all of its runs."""
    found = fetch(keys)
    if keys and len(found) == len(keys):
        yield from decode_blocks([found[key].connections for key in keys])
        return
    path, commit, runs = place
    reader = open_commit(path, commit)
    yield from decode_blocks([reader.connections(run) for run in runs])


def _read_ahead(blocks: Iterator[Run]) -> Iterator[Run]:
    """Yield the items of an iterator; while one is used, another thread makes the next one."""
    # In the context of this task, so that its worker is known.
    context = contextvars.copy_context()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def submit() -> concurrent.futures.Future[Run | None]:
            return pool.submit(context.run, lambda: next(blocks, None))

        following = submit()
        while (block := following.result()) is not None:
            following = submit()
            yield block


def open_commit_tables(path: str, commit: str, held: HeldRuns) -> CommitTables:
    """Open the tables of a commit, as a task; they are built and stored if they are not yet."""
    return CommitTables(path, commit, read_tables(path, commit, held), held)


def submit_tables(client: Client, reader: CommitReader) -> Future:
    """Return the `CommitTables` of a commit, opened on the cluster.

    Where workers have all runs of the commit in memory, as after a training, the tables are built from these, and
    nothing is read from the store but the words.

    Raises
    ------
    ClusterError
        If the scheduler does not answer.
    """
    runs = held_runs(client, reader)
    held = {region: tuple(str(run.key) for run in its) for region, its in runs.items()}
    key = task_key("tables", *place_of(reader))
    tables = client.submit(open_commit_tables, *place_of(reader), held, key=key)
    # The futures keep the runs until the tables are there.
    tables.add_done_callback(lambda _: runs.clear())
    return tables


def clear_tables(client: Client, path: str, kept: Collection[str], gone: Collection[str]) -> list[dict[str, Any]]:
    """Remove tables of a network from the user's cache folder of this process and of all workers.

    Parameters
    ----------
    client : Client
        Whose workers are asked.
    path, kept, gone
        See `giaann_dask.models.contexts.table_files.remove_tables`.

    Returns
    -------
    list of dict
        Of each folder the name of its machine (``host``), its path (``folder``), and of how many commits tables were
        removed (``commits``).

    Raises
    ------
    StoreRefusedError
        If some cannot be removed.
    ClusterError
        If a worker does not respond.
    """
    found: dict[tuple[str, str], int] = {}
    asked = ask_workers(client, _clear, path, tuple(kept), tuple(gone))
    for worker, cleared in (("this process", _clear(path, kept, gone)), *asked.items()):
        if isinstance(cleared, BaseException):
            raise StoreRefusedError(
                f"worker {worker} cannot remove tables: {first_line(cleared)}", "permission to do it"
            )
        host, folder, commits = cleared
        found[host, folder] = found.get((host, folder), 0) + commits
    return [{"host": host, "folder": folder, "commits": commits} for (host, folder), commits in sorted(found.items())]


def _clear(path: str, kept: Collection[str], gone: Collection[str]) -> tuple[str, str, int]:
    """Remove tables on this machine, and return which, where, and of how many commits."""
    with writing("the cache"):
        commits = remove_tables(path, kept, gone)
    return socket.gethostname(), str(tables_folder()), commits


class StoredCounts:
    """Packed counts in files; every block is compared with its checksum before it is first used.

    Parameters
    ----------
    counts : PackedCounts
        The counts, mapped.
    checksums : mapping of str to ndarray
        CRC-32C of each block of `_BLOCK` bytes of the arrays in `_IN_BLOCKS`; uint32.
    rebuild : callable
        Stores the tables again where a block is not what was written, and returns their counts.

    Attributes
    ----------
    packed : PackedCounts
        The counts as they are in the files.
    """

    def __init__(
        self,
        counts: PackedCounts,
        checksums: Mapping[str, npt.NDArray[np.uint32]],
        rebuild: Callable[[], CountRows],
    ) -> None:
        self._counts: CountRows = counts
        self.packed, self._rebuild, self._checksums = counts, rebuild, checksums
        self._unknown = {name: np.ones(len(blocks), np.bool_) for name, blocks in checksums.items()}
        self._left = sum(map(len, checksums.values()))

    @property
    def kinds(self) -> Integers:
        """See `PackedCounts.kinds`."""
        return self._counts.kinds

    def rows(self, kind: int, wanted: Integers) -> tuple[Rows, Integers, Integers]:
        """See `PackedCounts.rows`."""
        if self._left > 0 and not self._are_intact(kind, wanted):
            # Its own checksums are compared where these counts are in files again.
            self._counts, self._left = self._rebuild(), 0
        return self._counts.rows(kind, wanted)

    def _are_intact(self, kind: int, wanted: Integers) -> bool:
        """Return whether what the rows of some contexts are read from is what was written."""
        at = self.packed.buckets(kind, wanted)
        if not len(at):
            return True
        size = self.packed.begins.itemsize
        if not self._are_written("begins", at * size, (at + 2) * size):
            return False
        begin, end = (self.packed.begins[at + more].astype(np.int64) >> 6 for more in (0, 1))
        # A number is read with the 64 bits that follow it.
        return self._are_written("bits", 8 * begin, 8 * (end + 2))

    def _are_written(self, name: str, begin: Integers, end: Integers) -> bool:
        """Return whether some ranges of the bytes of an array are what was written."""
        unknown, checksums = self._unknown[name], self._checksums[name]
        first, last = begin // _BLOCK, np.minimum((end - 1) // _BLOCK, len(checksums) - 1)
        blocks = np.unique(join_ranges(first, last - first + 1))
        blocks = blocks[unknown[blocks]]
        content = getattr(self.packed, name).view(np.uint8)
        for block in blocks.tolist():
            if checksum_of(content[block * _BLOCK : (block + 1) * _BLOCK].tobytes()) != checksums[block]:
                return False
        unknown[blocks] = False
        self._left -= len(blocks)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make these counts in a process that has no such files."""
        every = all(
            self._are_written(name, np.zeros(1, np.int64), np.array([getattr(self.packed, name).nbytes]))
            for name in self._checksums
        )
        return _itself, (self.packed if every else self._rebuild(),)

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays."""
        return object.__sizeof__(self) + measure(self.packed)


def _itself(counts: CountRows) -> CountRows:
    return counts


def open_tables(
    path: str, commit: str, fingerprint: Callable[[], str], build: Callable[[], PackedTables]
) -> PackedTables:
    """Return the tables of a commit: mapped from files, else built, and stored if they are large.

    Parameters
    ----------
    path, commit : str
        Place of the network, and identity of the commit.
    fingerprint : callable
        Returns a digest of the commit's content in hexadecimal digits; called where files are read or stored.
    build : callable
        Builds its tables; called later, too, where a file turns out not to be what was written.

    Returns
    -------
    PackedTables
        Arrays of files are mapped copy-on-write.
    """
    # Without the files the next process builds the tables again.
    with suppress(OSError):
        if has_tables(path, commit):
            found = _read(private_cache(_FOLDER) / _name(path, commit, fingerprint()), build)
            if found is not None:
                return found
    return _build_and_store(lambda: _name(path, commit, fingerprint()), build)


def _build_and_store(name: Callable[[], str], build: Callable[[], PackedTables]) -> PackedTables:
    """Return new tables, mapped from files in a folder of some name if they are large."""
    tables = build()
    with suppress(OSError):
        parent, arrays = private_cache(_FOLDER), _arrays_of(tables)
        if _is_stored(arrays, parent):
            folder = parent / name()
            _store(tables, arrays, folder)
            # What is mapped is shared with other processes.
            tables = _read(folder, build) or tables
    return tables


def has_tables(path: str, commit: str) -> bool:
    """Return whether tables of a commit are stored in files, of this content or another one."""
    begin = _name(path, commit, "")
    return any(each.name.startswith(begin) for each in _stored())


def remove_tables(path: str, kept: Collection[str], gone: Collection[str]) -> int:
    """Remove tables of a network in this user's cache, and return of how many commits.

    Parameters
    ----------
    path : str
        Place of the network.
    kept : collection of str
        Commits of it whose tables stay; those of all others are removed.
    gone : collection of str
        Commits whose tables are removed wherever their network is, as of a copy.

    Raises
    ------
    OSError
        If some cannot be removed.
    """
    place, removed = _place(path), 0
    for folder in _stored():
        name = _NAME.fullmatch(folder.name)
        # Earlier versions named tables by the commit alone; others are incomplete.
        if name is None or int(name[4]) != _VERSION or name[2] in gone or (name[1] == place and name[2] not in kept):
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
            removed += name is not None or folder.name.rpartition("-")[0] in gone
    return removed


def tables_folder() -> Path:
    """Return the folder of all stored tables; it may not exist."""
    return user_cache() / _FOLDER


def _stored() -> list[Path]:
    """Return the folders of all stored tables; none where there are none."""
    try:
        return sorted(each for each in tables_folder().iterdir() if each.is_dir())
    except OSError:
        return []


def _stored_commits(path: str) -> list[str]:
    """Return the commits of a network whose tables are stored, last used first."""
    found = []
    for folder in _stored():
        name = _NAME.fullmatch(folder.name)
        if name is not None and name[1] == _place(path) and int(name[4]) == _VERSION:
            found.append((-folder.stat().st_mtime_ns, name[2]))
    return [commit for _, commit in sorted(found)]


def _place(path: str) -> str:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _name(path: str, commit: str, fingerprint: str) -> str:
    """Return the name of the folder of some tables, or its beginning where the fingerprint is not known."""
    return f"{_place(path)}-{commit}-{fingerprint}" + (f"-{_VERSION}" if fingerprint else "")


def _read(folder: Path, build: Callable[[], PackedTables]) -> PackedTables | None:
    """Return the tables in a folder, or None where there are none that can be used."""
    try:
        sealed = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        header = sealed["header"]
        if checksum_of_json(header) != sealed["checksum"]:
            return None
        arrays = {name: _mapped(folder / f"{name}.npy", array) for name, array in header["arrays"].items()}
        # Most are never asked for.
        names = Names.of_packed(arrays.pop("words_text"), arrays.pop("words_end"))
        spelling = Spelling(*(_levels(arrays, name) for name in ("keys", "counts")))
        os.utime(folder)
        checksums = {name: arrays.pop(_of_blocks(name)) for name in _IN_BLOCKS}
        counts = PackedCounts(**{name: arrays.pop(name) for name in _COUNTS})
        small, unknown = arrays.pop("small"), float(header["unknown"])
        words = WordTables(words=names, unknown=unknown, spelling=spelling, **arrays)
        stored = StoredCounts(counts, checksums, lambda: _build_and_store(lambda: folder.name, build).counts)
        return PackedTables(words, small, stored)
    except (OSError, ValueError, KeyError, TypeError, StoreDamagedError):
        return None


def _of_blocks(name: str) -> str:
    """Return the name of the checksums of the blocks of an array."""
    return f"{name}_checksums"


def _checksums_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the checksums of the blocks of an array."""
    content = array.tobytes()
    return np.array([checksum_of(content[at : at + _BLOCK]) for at in range(0, len(content), _BLOCK)], np.uint32)


def _levels(arrays: dict[str, npt.NDArray[Any]], name: str) -> tuple[npt.NDArray[np.int64], ...]:
    """Remove and return the arrays of the spelling with numbered names, in order."""
    count = sum(key.startswith(f"spelling_{name}_") for key in arrays)
    return tuple(arrays.pop(f"spelling_{name}_{level}") for level in range(count))


def _mapped(path: Path, expected: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Map an array, given its shape, its type, and the checksum of its bytes or None."""
    shape = tuple(expected["shape"])
    # Copy-on-write, because compiled code has other types for read-only arrays. Mapping fails for a truncated file.
    array: npt.NDArray[Any] = np.load(path, mmap_mode="c" if math.prod(shape) else None, allow_pickle=False)
    # Without it the system reads, and counts as memory of the process, many pages around each that is used.
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    if (array.shape, array.dtype.str) != (shape, expected["dtype"]):
        raise ValueError(f"{path} has the shape {array.shape}, expected {shape}")
    if expected["checksum"] not in (None, checksum_of(array.tobytes())):
        raise ValueError(f"{path} is not what was written")
    return array.view(np.ndarray)


def _arrays_of(tables: PackedTables) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of tables by name, those of words and spelling among them."""
    text, end = pack_strings(tables.words.words)
    arrays = {name: getattr(tables.counts, name) for name in _COUNTS} | {"small": tables.small}
    arrays |= {name: getattr(tables.words, name) for name in _WORDS} | {"words_text": text, "words_end": end}
    for name in ("keys", "counts"):
        levels: Sequence[npt.NDArray[Any]] = getattr(tables.words.spelling, name)
        arrays |= {f"spelling_{name}_{level}": array for level, array in enumerate(levels)}
    return arrays | {_of_blocks(name): _checksums_of(arrays[name]) for name in _IN_BLOCKS}


def _is_stored(arrays: Mapping[str, npt.NDArray[Any]], parent: Path) -> bool:
    """Return whether tables are large, and the disk has space for them."""
    nbytes = sum(array.nbytes for array in arrays.values())
    return _LEAST_BYTES <= nbytes <= min(_MOST_BYTES, _DISK_SHARE * shutil.disk_usage(parent).free)


def _store(tables: PackedTables, arrays: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Write tables into a folder in one step."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_INCOMPLETE, ignore_cleanup_errors=True) as name:
        written = Path(name, "tables")
        written.mkdir(mode=0o700)
        for key, array in arrays.items():
            with _opened(written / f"{key}.npy") as file:
                np.save(file, array, allow_pickle=False)
        header = {
            "unknown": tables.words.unknown,
            "arrays": {key: _described(key, array) for key, array in arrays.items()},
        }
        with _opened(written / _HEADER) as file:
            file.write(json.dumps({"header": header, "checksum": checksum_of_json(header)}).encode())
        # Fails where another process was faster; what cannot be read is replaced.
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)
    _remove_oldest(folder.parent)


def _described(name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what `_mapped` expects of an array."""
    checksum = None if name in _IN_BLOCKS else checksum_of(array.tobytes())
    return {"shape": list(array.shape), "dtype": array.dtype.str, "checksum": checksum}


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only this user can read, and write it to the disk at the end."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _remove_oldest(parent: Path) -> None:
    """Remove the tables that were not used for the longest time until the others fit the limit."""
    stored = sorted((path for path in parent.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    total = 0
    for path in stored:
        # Also what a process that was killed left.
        total += sum(file.stat().st_size for file in path.rglob("*.npy"))
        name = _NAME.fullmatch(path.name)
        earlier = not path.name.startswith(_INCOMPLETE) and (name is None or int(name[4]) != _VERSION)
        if total > _MOST_BYTES or earlier:
            shutil.rmtree(path, ignore_errors=True)
