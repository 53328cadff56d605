"""Write the content of a commit into its Zarr group, and read it.

A commit has the specification, the dictionaries, the ledger of counted text, the placement of columns, the manifest and
the runs. `network_store` has the repository of commits, and `run_io` writes the runs on workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import zarr

from giaann_dask.errors import RESTORE, StoreDamagedError, StoreFormatError
from giaann_dask.keys import Integers
from giaann_dask.runs.joined_tables import JOINED_METADATA
from giaann_dask.runs.packed_arrays import GROUP_KEY
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import RUN_ARRAYS, PackedRegionRun, PackedRun
from giaann_dask.runs.placement import Placement
from giaann_dask.storage import (
    CHECKSUMS,
    Write,
    append_values,
    checksum_of_json,
    read_array,
    read_arrays,
    read_json,
    reading,
    seal_arrays,
    update_values,
    write_concurrently,
    write_json,
)
from giaann_dask.store.icechunk_library import icechunk, use_icechunk
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.origins import ORIGIN_ARRAYS, Origins, origin_writes, read_origins
from giaann_dask.store.run_io import JoinedEntries, JoinedTables, StoredEntries
from giaann_dask.store.run_sources import RunSource, TableEntries, find_runs
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import LedgerEntry, read_entries, write_entries
from giaann_dask.text.names import Names, append_strings, string_arrays
from giaann_dask.text.tokenizer import SubwordTokenizer, open_content
from giaann_dask.text.vocabulary import Vocabulary

FORMAT = "giaann-dask network"
VERSION = 8
# The placement's table of first regions by column.
ASSIGNED = "first_region"
# Arrays that only grow, but where documents were removed.
_REWRITTEN = (
    *("concepts_text", "concepts_end", "features_text", "features_end", "delimiter", "probable_since"),
    *("ledger_identity", "ledger_sequences", "ledger_complete", ASSIGNED),
)
# Attributes of the root, and the checksum of those here but `CHECKSUMS`. Runs that a commit has kept are listed by the
# commit that wrote them: an identity names a run within one line of commits alone, and after a checkout another run may
# have it.
_MANIFEST, _RUN_COMMITS = "manifest", "run_commits"
# Runs whose tables are one array.
_JOINED = "joined_runs"
REPEATS = "repeats"
"""Attribute of the root for `StoredRepeats`, their group, and the one table of each region."""
# In that attribute, connections that the network had when its repeats were written, which commits without repeats keep.
_REPEATED = "connections"
_CHECKSUM = "checksum"
# What divides text into subwords, where these are the tokens.
_TOKENIZER = "tokenizer"
# Of subwords alone: since when each is known as a delimiter.
DELIMITER_SINCE = "delimiter_since"


def vocabulary_writes(vocabulary: Vocabulary, concepts: int = 0, features: int = 0) -> list[Write]:
    """Return what appends the entries of a vocabulary beyond the stored sizes to a group, and updates changed flags.

    Parameters
    ----------
    vocabulary : Vocabulary
        Of a commit or a corpus.
    concepts, features : int
        Stored sizes; the arrays are created by default.
    """
    delimiter = np.array(vocabulary.delimiter, np.bool_)
    writes: list[Write] = [
        partial(append_strings, name="concepts", strings=vocabulary.concepts[concepts:]),
        partial(append_strings, name="features", strings=vocabulary.features[features:]),
        partial(update_values, name="probable_since", values=np.array(vocabulary.probable_since, np.int64)),
    ]
    if vocabulary.delimiter_since is None:
        return [*writes, partial(append_values, name="delimiter", values=delimiter[features:])]
    later = np.array(vocabulary.delimiter_since, np.int64)
    return [
        *writes,
        partial(update_values, name="delimiter", values=delimiter),
        partial(update_values, name=DELIMITER_SINCE, values=later),
    ]


def read_vocabulary(root: zarr.Group, sequences: int) -> Vocabulary:
    """Return the stored dictionaries after so many counted sequences.

    Raises
    ------
    StoreDamagedError
        If one of their arrays is missing or cannot be read.
    """
    strings = [array for table in ("concepts", "features") for array in string_arrays(table)]
    flags = ["delimiter", "probable_since", *([DELIMITER_SINCE] if DELIMITER_SINCE in root else [])]
    arrays = read_arrays(root, [*strings, *flags])
    concepts, features = (
        Names.of_packed(*(arrays[name] for name in string_arrays(table))) for table in ("concepts", "features")
    )
    delimiter, since, *later = (arrays[name].tolist() for name in flags)
    return Vocabulary(concepts, features, delimiter, since, sequences, *later)


class CommitContent:
    """Dictionaries, ledger, placement and origins of a commit: all but its runs and its manifest.

    Parameters
    ----------
    manifest : Manifest
        Counts and sizes; its runs do not matter.
    vocabulary : Vocabulary
        Dictionaries; only as much of them as the manifest says is written.
    ledger : list of LedgerEntry
        All entries.
    placement : Placement
        Where neurons belong; its splits and load are those of the manifest.
    rewritten : bool
        Whether these are others than before, not only longer.
    origins : Origins, optional
        Where the sequences come from; as before by default.
    """

    def __init__(
        self,
        manifest: Manifest,
        vocabulary: Vocabulary,
        ledger: list[LedgerEntry],
        placement: Placement,
        *,
        rewritten: bool = False,
        origins: Origins | None = None,
    ) -> None:
        self.rewritten = rewritten
        self.origins = origins
        self.placement = placement
        self.vocabulary = vocabulary.truncated(manifest.concepts, manifest.features, manifest.sequences - 1)
        self.ledger = list(ledger)


class StoredRepeats(NamedTuple):
    """Repeats of a commit, which smoothing of profile ``contexts`` needs: a table of each region beside its runs.

    `giaann_dask.models.contexts.stored_tables` makes them. Commits that lack them are read as a whole.

    Attributes
    ----------
    name : str
        Unique, of its tables.
    small : ndarray
        How many words of all contexts have 1, 2, 3 and 4 continuations, by kind of the chain; int64.
    """

    name: str
    small: Integers

    def path(self, region: int) -> str:
        """Return the path of the group of a region's table."""
        return f"{REPEATS}/{self.name}-{region:05d}"

    def as_dict(self, connections: int) -> dict[str, Any]:
        """Return the attribute of the root, given how many connections the network has."""
        return {"name": self.name, "small": self.small.tolist(), _REPEATED: connections}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StoredRepeats | None:
        """Return what a commit has, given the attribute of the root; None for nothing."""
        return cls(stored["name"], np.array(stored["small"], np.int64)) if "name" in stored else None


class CommitReader:
    """Reads one commit of a network; made by `NetworkStore.open`."""

    def __init__(self, path: Path, commit: str, session: icechunk.Session) -> None:
        self.path = path
        self.commit = commit
        self._read_from = session.store
        with reading(f"network {path}"):
            self._opened_root = zarr.open_group(self._store, mode="r")
            attributes = dict(self._root.attrs)
        if (attributes.get("format"), attributes.get("version")) != (FORMAT, VERSION):
            raise StoreFormatError(
                f"{path} is {attributes.get('format')!r} version {attributes.get('version')!r}",
                f"{FORMAT!r} version {VERSION}",
                "name a network; corpora are inputs of train and evaluate"
                if "corpus" in str(attributes.get("format"))
                else "train it again from its text, or open it with the version of giaann_dask that wrote it",
            )
        # First: its errors name what is wrong with the manifest.
        self._manifest = Manifest.from_dict(attributes.get(_MANIFEST), f"network {path}")
        if attributes.get(_CHECKSUM) != _checksum(attributes) or CHECKSUMS not in attributes:
            raise StoreDamagedError(f"the manifest of network {path} is not what was written", "", RESTORE)
        kept = cast(Mapping[str, list[str]], attributes[_RUN_COMMITS])
        self._run_commits = {identity: commit for commit, identities in kept.items() for identity in identities}
        self.joined_runs = frozenset(cast(list[str], attributes[_JOINED]))
        stored = cast(Mapping[str, Any], attributes[REPEATS])
        self._repeats = StoredRepeats.from_dict(stored)
        self.repeated_connections = int(stored[_REPEATED])
        self._held: RunSource | None = None

    @property
    def _store(self) -> icechunk.IcechunkStore:
        use_icechunk()
        return self._read_from

    @property
    def _root(self) -> zarr.Group:
        use_icechunk()
        return self._opened_root

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises
        ------
        StoreForkedError
            In a process that was forked from one that used Icechunk, here and in all methods.
        """
        use_icechunk()
        return self._manifest

    def commit_of(self, identity: str) -> str:
        """Return the identity of the commit that wrote a run, which is this one or an earlier one."""
        return self._run_commits.get(identity, self.commit)

    def fingerprint(self) -> str:
        """Return a digest of the checksums of all arrays and of all connections, in hexadecimal digits.

        The identity of a commit is no more than the name of a file, which other content can have as well.
        """
        digest = hashlib.blake2b(digest_size=16)
        # What has the checksums of the chunks of each run's connections.
        chunks = [f"connections/{name}/zarr.json" for name in RUN_ARRAYS]
        runs = [run.identity for run in self._manifest.runs]
        names = [f"{run}/{name}" for run in runs for name in ([JOINED_METADATA] if run in self.joined_runs else chunks)]
        with reading(f"network {self.path}"):
            # The attributes have the checksums of the words and of all other arrays.
            parts = [json.dumps(dict(self._root.attrs), sort_keys=True).encode()]
            # In one call, which takes longer than what a run adds to it.
            for name, entry in StoredEntries(self._store, "runs/").read(names).items():
                parts += [name.encode(), entry]
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def zarr_store(self) -> icechunk.IcechunkStore:
        """Return the Zarr store of the commit, which is read-only."""
        return self._store

    def ever_pos(self) -> EverPos:
        """Return the ever-POS lexicon."""
        with reading(f"network {self.path}"):
            return EverPos.from_dict(read_json(self._root, "ever_pos"))

    def tokenizer(self) -> SubwordTokenizer | None:
        """Return the tokenizer of a network of subwords; None for words."""
        with reading(f"network {self.path}"):
            return open_content(read_json(self._root, _TOKENIZER)) if _TOKENIZER in self._root else None

    def vocabulary(self) -> Vocabulary:
        """Return the dictionaries as they were in memory at the commit."""
        with reading(f"network {self.path}"):
            found = read_vocabulary(self._root, self._manifest.sequences)
        expected = (self._manifest.concepts, *(self._manifest.features,) * 3)
        flags = len(found.delimiter), len(found.probable_since)
        sizes = (len(found.concepts), len(found.features), *flags)
        if sizes != expected:
            raise StoreDamagedError(f"the dictionaries of {self.path} have sizes {sizes}", f"{expected}")
        return found

    def saved_vocabulary(self) -> Vocabulary:
        """Return the dictionaries as of the last trained sequence, from which inference starts."""
        m = self._manifest
        return self.vocabulary().truncated(m.saved_concepts, m.saved_features, m.last_trained)

    def stored_runs(self) -> set[str]:
        """Return the identities of all runs in the commit; the manifest names the same."""
        with reading(f"network {self.path}"):
            return set(cast(zarr.Group, self._root["runs"]).group_keys())

    def ledger(self) -> list[LedgerEntry]:
        """Return the parts of text that the commit has counted."""
        with reading(f"network {self.path}"):
            return read_entries(self._root)

    def placement(self) -> Placement:
        """Return where neurons belong."""
        manifest = self._manifest
        with reading(f"network {self.path}"):
            assigned = read_array(self._root, ASSIGNED)
        load = np.array(manifest.load, np.int64)
        return Placement(manifest.first_regions, assigned, load, manifest.splits)

    def run(self, identity: str) -> PackedRegionRun:
        """Return the encoded chunks of a run, as they are stored."""
        names = self._table_names
        return PackedRegionRun(*self._packed(identity, names, self._entries(identity, *names)))

    def stored_run(self, identity: str) -> PackedRegionRun:
        """Return what `run` does, from the store wherever else it is."""
        names = self._table_names
        return PackedRegionRun(*self._packed(identity, names, self._stored_entries(identity, *names)))

    @property
    def _table_names(self) -> tuple[str, ...]:
        """Names of the tables of a run."""
        return ("connections", "neurons", "postings")[: 2 + self._manifest.specification.trace]

    def connections(self, identity: str) -> PackedRun:
        """Return the encoded connections of a run alone."""
        return self._table(identity, "connections")

    def neurons(self, identity: str) -> PackedRun:
        """Return the encoded strengths of the neurons of a run alone."""
        return self._table(identity, "neurons")

    def postings(self, identity: str) -> PackedRun | None:
        """Return the encoded postings of a run alone; None where the network has no index."""
        return self._table(identity, "postings") if self._manifest.specification.trace else None

    def _table(self, identity: str, name: str) -> PackedRun:
        return self._packed(identity, [name], self._entries(identity, name))[0]

    def origins(self) -> Origins | None:
        """Return where the sequences of the commit come from; None where the network has no index."""
        if not self._manifest.specification.trace:
            return None
        with reading(f"network {self.path}"):
            return read_origins(self._root)

    def entries(self, identity: str) -> tuple[TableEntries, TableEntries]:
        """Return the connections and the neurons of a run, read on demand."""
        connections, neurons = self._entries(identity, "connections", "neurons")
        return connections, neurons

    def _entries(self, identity: str, *tables: str) -> list[TableEntries]:
        """Return the entries of some tables of a run, read on demand: in the memory of workers, else in the store."""
        self._held = self._held or find_runs(self)
        stored = self._stored_entries(identity, *tables)
        if self._held is None:
            return stored
        return [self._held.entries(identity, table, its) for table, its in zip(tables, stored, strict=True)]

    def _stored_entries(self, identity: str, *tables: str) -> list[TableEntries]:
        """Return the entries of some tables of a run in the store, read on demand."""
        if identity in self.joined_runs:
            joined = JoinedTables(self._run_entries(identity))
            return [JoinedEntries(joined, table) for table in tables]
        return [StoredEntries(self._store, f"runs/{identity}/{table}/") for table in tables]

    def _run_entries(self, identity: str) -> StoredEntries:
        return StoredEntries(self._store, f"runs/{identity}/")

    def rows(self, identity: str, table: str = "connections") -> RowReader:
        """Return a reader of the rows of a run's ``connections``, ``neurons`` or ``postings``.

        Raises
        ------
        StoreDamagedError
            If the run is missing or does not decode.
        """
        return self._row_reader(self._entries(identity, table)[0], identity, table)

    def repeats(self) -> StoredRepeats | None:
        """Return what is stored about all counts of profile ``contexts``; None where they have to be read instead."""
        return self._repeats

    def repeat_rows(self, region: int) -> RowReader:
        """Return a reader of the repeats of the contexts of a region, where `repeats` has some.

        Raises
        ------
        StoreDamagedError
            If they are missing or do not decode.
        """
        assert self._repeats is not None, "the commit has no repeats"
        path = self._repeats.path(region)
        return self._row_reader(StoredEntries(self._store, f"{path}/{REPEATS}/"), path, REPEATS)

    def _row_reader(self, entries: TableEntries, identity: str, table: str) -> RowReader:
        with reading(f"network {self.path}"):
            if not entries.read([GROUP_KEY]):
                raise self._missing(identity, table)
            return RowReader(entries.read)

    def _packed(self, identity: str, names: Sequence[str], tables: Sequence[TableEntries]) -> list[PackedRun]:
        """Return the encoded chunks of some tables of a run, given their names and entries."""
        found = []
        with reading(f"network {self.path}"):
            for entries, name in zip(tables, names, strict=True):
                packed = PackedRun.read_from(entries.read)
                if packed is None:
                    raise self._missing(identity, name)
                found.append(packed)
        return found

    def _missing(self, identity: str, name: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"network {self.path} has no {name} of run {identity}", "every run that its manifest names", RESTORE
        )


def write_empty(
    root: zarr.Group, manifest: Manifest, ever_pos: EverPos, tokenizer: SubwordTokenizer | None = None
) -> None:
    """Write the content of a network without sequences into an empty group.

    Parameters
    ----------
    root : zarr.Group
        The group.
    manifest : Manifest
        Of an empty network.
    ever_pos : EverPos
        Ever-POS lexicon.
    tokenizer : SubwordTokenizer, optional
        Of a network of subwords.
    """
    root.create_group("runs")
    writes: list[Write] = [
        *vocabulary_writes(Vocabulary()),
        partial(write_entries, entries=[]),
        partial(update_values, name=ASSIGNED, values=np.zeros(0, np.int32)),
        partial(write_json, name="ever_pos", value=ever_pos.as_dict()),
    ]
    if manifest.specification.trace:
        writes += origin_writes(Origins(), None)
    if tokenizer is not None:
        writes.append(partial(write_json, name=_TOKENIZER, value=tokenizer.content))
    root.metadata.attributes[CHECKSUMS] = {}
    write_concurrently(root, writes)
    _write_header(root, manifest, sums=cast(Mapping[str, int], root.attrs[CHECKSUMS]))


def remove_replaced(root: zarr.Group, before: CommitReader, manifest: Manifest) -> None:
    """Remove the runs that a commit does not keep, and the repeats before it; call it before new ones are merged.

    Parameters
    ----------
    root : zarr.Group
        Of the session, with the content of the commit before.
    before : CommitReader
        That commit.
    manifest : Manifest
        Of the new one.
    """
    if REPEATS in root:
        for name in list(zarr.open_group(root.store, path=REPEATS, mode="r").group_keys()):
            del root[f"{REPEATS}/{name}"]
    # What deleting costs grows with what a session has changed.
    for identity in {run.identity for run in before.manifest().runs} - {run.identity for run in manifest.runs}:
        del root[f"runs/{identity}"]


def write_content(root: zarr.Group, before: CommitReader, content: CommitContent) -> dict[str, int]:
    """Write the content of a commit, as far as it differs from that of the commit before.

    Returns the checksums of the values of all arrays, for `write_manifest`.

    Parameters
    ----------
    root : zarr.Group
        Of the session, with the content of the commit before.
    before : CommitReader
        That commit.
    content : CommitContent
        That of the new one.
    """
    old, origins = before.manifest(), None
    concepts, features = old.concepts, old.features
    if content.rewritten:
        for name in (*_REWRITTEN, *(ORIGIN_ARRAYS if content.origins is not None else ())):
            del root[name]
        concepts = features = 0
    elif content.origins is not None:
        origins = before.origins()
    # The ledger has new entries, and some that have grown; old columns may have a region now that had none.
    writes: list[Write] = [
        *vocabulary_writes(content.vocabulary, concepts, features),
        partial(write_entries, entries=content.ledger),
        partial(update_values, name=ASSIGNED, values=content.placement.assigned),
    ]
    if content.origins is not None:
        writes += origin_writes(content.origins, origins)
    write_concurrently(root, writes)
    return dict(cast(Mapping[str, int], root.attrs[CHECKSUMS]))


def write_manifest(
    root: zarr.Group,
    before: CommitReader,
    manifest: Manifest,
    repeats: StoredRepeats | None = None,
    *,
    joined: Collection[str] = (),
    sums: Mapping[str, int] | None = None,
) -> None:
    """Write the manifest of a commit, and the checksums of its content, after all else is in the session.

    Parameters
    ----------
    root : zarr.Group
        Of the session.
    before : CommitReader
        The commit before.
    manifest : Manifest
        Counts, sizes and runs.
    repeats : StoredRepeats, optional
        What was written of all counts of profile ``contexts``.
    joined : collection of str
        Identities of new runs whose tables are one array.
    sums : mapping of str to int, optional
        What `write_content` has returned; by default all arrays are read.
    """
    kept = {run.identity for run in manifest.runs} & {run.identity for run in before.manifest().runs}
    run_commits = {identity: before.commit_of(identity) for identity in kept}
    joined = (kept & before.joined_runs).union(joined)
    _write_header(root, manifest, repeats, run_commits, before.repeated_connections, joined, sums)


def _write_header(
    root: zarr.Group,
    manifest: Manifest,
    repeats: StoredRepeats | None = None,
    run_commits: Mapping[str, str] = MappingProxyType({}),
    repeated: int = 0,
    joined: Collection[str] = (),
    sums: Mapping[str, int] | None = None,
) -> None:
    """Write the attributes of a commit after its arrays."""
    runs: dict[str, list[str]] = {}
    for identity, commit in sorted(run_commits.items()):
        runs.setdefault(commit, []).append(identity)
    own = {_REPEATED: repeated} if repeats is None else repeats.as_dict(manifest.connections)
    values: dict[str, Any] = {_MANIFEST: manifest.as_dict(), _RUN_COMMITS: runs, _JOINED: sorted(joined), REPEATS: own}
    values |= {_CHECKSUM: _checksum(values), CHECKSUMS: seal_arrays(root) if sums is None else dict(sums)}
    root.update_attributes({"format": FORMAT, "version": VERSION, **values})


def _checksum(attributes: Mapping[str, Any]) -> int:
    """Return the checksum of the attributes that describe a commit."""
    return checksum_of_json([attributes.get(name) for name in (_MANIFEST, _RUN_COMMITS, _JOINED, REPEATS)])
