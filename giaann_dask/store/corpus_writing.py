"""Write corpora: workers write whole chunks of the arrays, and the driver makes one commit of them.

A chunk has one writer. The driver creates the arrays empty, workers write chunks through forks of its session, and
the commit has the length of the arrays, the dictionaries and the digests of all chunks. A folder has a corpus only
when it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import StoreExistsError
from giaann_dask.library_internals import sync
from giaann_dask.object_urls import is_object_store
from giaann_dask.storage import CHUNK, Write, create_array, write_concurrently, write_json, writing
from giaann_dask.store.commits import vocabulary_writes
from giaann_dask.store.corpus import FORMAT, OFFSET, SEQUENCE_ARRAYS, TOKEN_ARRAYS, VERSION, RecordingStore, seal_group
from giaann_dask.store.icechunk_library import icechunk
from giaann_dask.store.locking import WriteLock, locked, require_text
from giaann_dask.store.places import StorePlace
from giaann_dask.store.run_io import fork_session, merge_packed, open_fork, pack_written, require_one_writer
from giaann_dask.store.unfinished import BRANCH, is_blank, is_vacant, made_apart
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import LedgerEntry, write_entries
from giaann_dask.text.names import append_strings
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary

# Length of the arrays while chunks are written; Icechunk accepts no chunk beyond the length.
_LONGEST = CHUNK << 20
# Attribute of a repository in an object store until the commit.
_UNFINISHED_FORMAT = "giaann-dask corpus, unfinished"


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class WrittenChunks:
    """Chunks of a corpus that a worker has written.

    Attributes
    ----------
    fork : bytes
        The fork of the session with the chunks.
    digests : dict of str to str
        Digest of each chunk by its key in the store.
    """

    fork: bytes
    digests: dict[str, str]


def write_chunks(fork: bytes, start: int, arrays: Mapping[str, npt.NDArray[Any]]) -> WrittenChunks:
    """Write a range of some arrays of a corpus, on the worker that has it in memory.

    Parameters
    ----------
    fork : bytes
        From `CorpusWriter.fork`.
    start : int
        Where the range begins; a multiple of the length of a chunk. No other task writes its chunks.
    arrays : mapping of str to ndarray
        Values by the name of the array.

    Raises
    ------
    StoreWriteError
        If the disk is full.
    StoreUnsharedError
        If this process does not see the place of the corpus; then nothing is written.
    """
    opened = open_fork(fork)
    store = RecordingStore(opened.store)

    async def write() -> None:
        group = await zarr.AsyncGroup.open(store)

        async def write_array(name: str, values: npt.NDArray[Any]) -> None:
            array = cast(Any, await group.getitem(name))
            await array.setitem(slice(start, start + len(values)), values)

        await asyncio.gather(*(write_array(name, values) for name, values in arrays.items()))

    with writing("the corpus"):
        sync(write())
    return WrittenChunks(pack_written(opened), store.digests)


@dataclass(frozen=True, kw_only=True)
class CorpusContent:
    """Lengths, dictionaries and ledger of a corpus, which the driver writes.

    Attributes
    ----------
    tokens, sequences : int
        Lengths of the arrays that workers have written.
    vocabulary : Vocabulary
        Dictionaries at the end of the corpus.
    surfaces : sequence of str
        Words of nouns, in order of first appearance.
    ledger : sequence of LedgerEntry
        Parts of the text, in order.
    attributes : mapping
        Options that the text was encoded with.
    ever_pos : EverPos
        Ever-POS lexicon.
    tokenizer : SubwordTokenizer or None
        Of a corpus of subwords.
    """

    tokens: int
    sequences: int
    vocabulary: Vocabulary
    surfaces: Sequence[str]
    ledger: Sequence[LedgerEntry]
    attributes: Mapping[str, Any]
    ever_pos: EverPos
    tokenizer: SubwordTokenizer | None = None


class CorpusWriter:
    """Corpus that is being written; made by `new_corpus`.

    Parameters
    ----------
    place : Path
        Where the repository is made.
    held : WriteLock
        The right to write to the place of the corpus.
    """

    def __init__(self, place: Path, held: WriteLock) -> None:
        self.held = held
        with writing(f"corpus {held.path}"):
            repository = StorePlace(str(place)).repository(make=True)
            created = repository.writable_session(BRANCH)
            root = zarr.open_group(created.store, mode="a")
            for name, dtype in {**TOKEN_ARRAYS, **SEQUENCE_ARRAYS, OFFSET: np.int64}.items():
                create_array(root, name, np.zeros(0, dtype))
                _set_length(root, name, _LONGEST)
            root.attrs["format"] = _UNFINISHED_FORMAT
            created.commit("created")
            self._session: icechunk.Session = repository.writable_session(BRANCH)

    def fork(self) -> bytes:
        """Return a pickled fork of the session, through which any number of tasks write chunks."""
        return fork_session(self._session, self.held.mark())

    def finish(self, written: Sequence[WrittenChunks], content: CorpusContent) -> None:
        """Write everything but the chunks of the workers, and commit.

        Raises
        ------
        StoreWriteError
            If the disk is full.
        """
        with writing(f"corpus {self.held.path}"):
            self._finish(written, content)

    def _finish(self, written: Sequence[WrittenChunks], content: CorpusContent) -> None:
        store = RecordingStore(self._session.store)
        for each in written:
            require_one_writer(store.digests, each.digests)
            merge_packed(self._session, each.fork)
            store.digests.update(each.digests)
        root = zarr.open_group(store, mode="a")
        for names, length in ((TOKEN_ARRAYS, content.tokens), (SEQUENCE_ARRAYS, content.sequences)):
            for name in names:
                _set_length(root, name, length)
        _set_length(root, OFFSET, content.sequences + 1)
        writes: list[Write] = [
            *vocabulary_writes(content.vocabulary),
            partial(append_strings, name="surfaces", strings=content.surfaces),
            partial(write_entries, entries=content.ledger),
            partial(write_json, name="ever_pos", value=content.ever_pos.as_dict()),
        ]
        if content.tokenizer is not None:
            writes.append(partial(write_json, name="tokenizer", value=content.tokenizer.content))
        write_concurrently(root, writes)
        seal_group(root, {"format": FORMAT, "version": VERSION, **content.attributes}, store.digests)
        self.held.mark()
        self._session.commit(f"{content.sequences} sequences, {content.tokens} tokens")


def require_absent(path: Path) -> None:
    """Check that a new corpus can be written to a place.

    Raises
    ------
    StoreExistsError
        If something is there already.
    """
    try:
        vacant = is_vacant(path) or _is_unfinished(path)
    except StoreExistsError:
        vacant = False
    if not vacant:
        raise StoreExistsError(
            f"{path} exists already",
            "a path that does not exist",
            "set out to another one, or remove it",
            names=("out",),
        )


@contextmanager
def new_corpus(path: Path) -> Iterator[CorpusWriter]:
    """Lock a place, create a corpus there, and remove it unless it is complete when the context ends.

    Parameters
    ----------
    path : Path
        Place of the corpus, absolute.

    Yields
    ------
    CorpusWriter

    Raises
    ------
    StoreExistsError
        If something is there already.
    StoreWriteError, StoreRefusedError, StoreUnreachableError
        If it cannot be written, or another process writes it.
    """
    require_absent(path)
    require_text(path)
    with locked(path) as held:
        require_absent(path)
        if is_object_store(path):
            place = StorePlace(str(path))
            place.remove()
            try:
                yield CorpusWriter(path, held)
            except BaseException:
                with suppress(Exception):
                    place.remove()
                raise
            return
        with made_apart(path) as new:
            yield CorpusWriter(new, held)


def _is_unfinished(path: Path) -> bool:
    """Return whether a place holds what is left of a process that was killed while it wrote a corpus there."""
    if not is_object_store(path):
        return False
    repository = StorePlace(str(path)).repository()
    if is_blank(repository):
        return True
    session = repository.readonly_session(BRANCH)
    attributes = dict(zarr.open_group(session.store, mode="r").attrs)
    return bool(attributes.get("format") == _UNFINISHED_FORMAT)


def _set_length(group: zarr.Group, name: str, length: int) -> None:
    """Set the length of an array without a look at chunks beyond it, of which there are none."""
    array = cast(Any, group[name])
    sync(array.async_array.resize((length,), delete_outside_chunks=False))
