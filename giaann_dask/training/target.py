"""Open the network that training writes to, or create it when there is something to commit.

A first run that fails before its first commit leaves no files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import SpecificationError, describe_difference
from giaann_dask.models import model_of, same_counts
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.origins import Origins
from giaann_dask.store.unfinished import BRANCH, is_vacant
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.tracing import require_index
from giaann_dask.training.committing import CommitContents

if TYPE_CHECKING:
    from distributed import Future


class NetworkTarget:
    """Existing or new network to train, locked by this process.

    Parameters
    ----------
    place : SharedPlace
        Its folder, which all workers can access.
    specification : Specification
        Of the network; must equal the stored one.
    ever_pos : EverPos
        Ever-POS lexicon; must equal the stored one.
    tokenizer : SubwordTokenizer, optional
        Of a network of subwords; must equal the stored one.
    store : NetworkStore, optional
        The network, when it exists.
    reader : CommitReader, optional
        Its last commit.

    Attributes
    ----------
    reader : CommitReader or None
        The commit that training continues: the last one, None before there is any.
    held : tuple of Future
        Runs of that commit that stay in the memory of their owners, as long as these futures exist.

    Raises
    ------
    SpecificationError
        If the network exists with another specification, lexicon or tokenizer, if the specification
        needs more than sums, or if its tokens are subwords and there is no tokenizer.
    """

    def __init__(
        self,
        place: SharedPlace,
        specification: Specification,
        ever_pos: EverPos,
        tokenizer: SubwordTokenizer | None = None,
        store: NetworkStore | None = None,
        reader: CommitReader | None = None,
    ) -> None:
        model_of(specification).require_trainable(specification)
        require_tokenizer(specification, tokenizer)
        self.place, self.specification, self.ever_pos, self.tokenizer = place, specification, ever_pos, tokenizer
        self.store, self.reader = store, reader
        self.held: tuple[Future, ...] = ()
        if store is not None and reader is not None:
            store.held = place.held
            self._require_same(reader)

    def _require_same(self, reader: CommitReader) -> None:
        path, specification, tokenizer = self.place.path, self.specification, self.tokenizer
        reader.manifest().require_whole(path)
        if specification.trace:
            require_index(reader)
        stored_rules = same_counts(reader.manifest().specification, specification)
        check_same("specification", specification.describe(), stored_rules.describe(), path)
        check_same("ever-POS lexicon", self.ever_pos.identity(), reader.ever_pos().identity(), path)
        stored, wanted = (None if each is None else each.identity() for each in (reader.tokenizer(), tokenizer))
        check_same("tokenizer", wanted, stored, path)

    def load(self) -> tuple[CommitContents, Placement]:
        """Return the contents of the last commit without its runs, or those of an empty network."""
        if self.reader is None:
            manifest = Manifest.new(self.specification)
            origins = Origins() if self.specification.trace else None
            contents = CommitContents(manifest, self._new_vocabulary(), Ledger(), origins=origins)
            return contents, Placement(manifest.first_regions)
        reader, found = self.reader, self.reader.vocabulary()
        # A network without any commit has no dictionaries yet.
        vocabulary = found if found.concepts or len(found.features) > 1 else self._new_vocabulary()
        # Options that only predictions read are the last ones that were asked for.
        manifest = replace(reader.manifest(), specification=self.specification)
        contents = CommitContents(manifest, vocabulary, Ledger(reader.ledger()), origins=reader.origins())
        return contents, reader.placement()

    def _new_vocabulary(self) -> Vocabulary:
        """Return the initial dictionaries: empty ones, or those of the tokenizer."""
        if self.tokenizer is None:
            return Vocabulary()
        return Vocabulary.of_subwords(self.tokenizer.names, self.specification.column_names)

    def ensure(self, *, finished: bool = True) -> tuple[NetworkStore, CommitReader]:
        """Return store and last commit, creating them where there are none; `finished`: no commit follows that."""
        if self.store is None or self.reader is None:
            manifest = Manifest.new(self.specification)
            held = self.place.held
            self.store = NetworkStore.create(
                held.path, manifest, self.ever_pos, self.tokenizer, held, finished=finished
            )
            self.store.held = held
            self.reader = self.store.open(self.store.head())
        return self.store, self.reader


def require_tokenizer(specification: Specification, tokenizer: SubwordTokenizer | None) -> None:
    """Raise a `SpecificationError` when the kind of tokens and the tokenizer do not agree."""
    if (specification.tokens == "subwords") != (tokenizer is not None):
        raise SpecificationError(
            f"tokens are {specification.tokens} and tokenizer is {'not ' * (tokenizer is None)}given",
            "subwords of one, or words without",
            "give tokenizer as a file, learn:SIZE or tiktoken:NAME with profile v2, or none",
            names=("tokenizer",),
        )


def open_store(path: Path, branch: str = BRANCH) -> NetworkStore | None:
    """Return the network at a path, or None when the path does not exist or is empty.

    Parameters
    ----------
    path : Path
        Folder of the network.
    branch : str
        Branch that commits are made on.

    Raises
    ------
    StoreExistsError
        If the path has other files.
    StoreUnreachableError
        If an object store does not respond.
    """
    if is_vacant(path):
        return None
    store = NetworkStore(path, branch)
    # Nothing was ever committed: creating the network replaces it.
    return None if store.blank() else store


def check_same(what: str, wanted: object, stored: object, path: Path) -> None:
    """Raise a `SpecificationError` when a requested property differs from the stored one."""
    if wanted != stored:
        shown, expected = describe_difference(stored, wanted)
        raise SpecificationError(
            f"network {path} has {what} {shown}",
            f"{expected} as asked for",
            "leave it out to use the network's own, or train a new network",
        )
