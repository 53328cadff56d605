"""Open the network that training writes to, or create it when there is something to commit.

A first run that fails before its first commit leaves no files.
"""

from __future__ import annotations

from pathlib import Path

from giaann_dask.cluster.sharing import SharedPlace
from giaann_dask.errors import SpecificationError, describe_difference, parameter
from giaann_dask.models import model_of
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.store.locking import is_vacant
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.origins import Origins
from giaann_dask.store.unfinished import BRANCH
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.tracing.index import require_index


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
    store : NetworkStore, optional
        The network, when it exists.
    tokenizer : SubwordTokenizer, optional
        Of a network of subwords; must equal the stored one.

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
        store: NetworkStore | None,
        tokenizer: SubwordTokenizer | None = None,
    ) -> None:
        model_of(specification).require_trainable(specification)
        require_tokenizer(specification, tokenizer)
        path = place.path
        self.place = place
        self.specification = specification
        self.ever_pos = ever_pos
        self.tokenizer = tokenizer
        self.store = store
        if store is not None:
            store.held = place.held
            reader = store.open(store.head())
            reader.manifest().require_whole(path)
            if specification.trace:
                require_index(reader)
            check_same("specification", specification.describe(), reader.manifest().specification.describe(), path)
            check_same("ever-POS lexicon", ever_pos.identity(), reader.ever_pos().identity(), path)
            stored, wanted = (None if each is None else each.identity() for each in (reader.tokenizer(), tokenizer))
            check_same("tokenizer", wanted, stored, path)

    def load(self) -> tuple[Manifest, Vocabulary, Ledger]:
        """Return the contents of the last commit without its runs, or those of an empty network."""
        if self.store is None:
            return Manifest.new(self.specification), self._new_vocabulary(), Ledger()
        reader = self.store.open(self.store.head())
        found = reader.vocabulary()
        # A network without any commit has no dictionaries yet.
        vocabulary = found if found.concepts or len(found.features) > 1 else self._new_vocabulary()
        return reader.manifest(), vocabulary, Ledger(reader.ledger())

    def origins(self) -> Origins | None:
        """Return where the sequences of the last commit come from; None where the network has no index."""
        if not self.specification.trace:
            return None
        return Origins() if self.store is None else self.store.open(self.store.head()).origins()

    def _new_vocabulary(self) -> Vocabulary:
        """Return the initial dictionaries: empty ones, or those of the tokenizer."""
        if self.tokenizer is None:
            return Vocabulary()
        return Vocabulary.of_subwords(self.tokenizer.names, self.specification.column_names)

    def placement(self) -> Placement:
        """Return the placement of the last commit, or that of an empty network."""
        if self.store is None:
            return Placement(Manifest.new(self.specification).first_regions)
        return self.store.open(self.store.head()).placement()

    def ensure(self, *, finished: bool = True) -> NetworkStore:
        """Return the store, creating it when it does not exist; `finished` is whether no commit follows that."""
        if self.store is None:
            manifest = Manifest.new(self.specification)
            held = self.place.held
            self.store = NetworkStore.create(
                held.path, manifest, self.ever_pos, self.tokenizer, held, finished=finished
            )
            self.store.held = held
        return self.store


def require_tokenizer(specification: Specification, tokenizer: SubwordTokenizer | None) -> None:
    """Raise a `SpecificationError` when the kind of tokens and the tokenizer do not agree."""
    if (specification.tokens == "subwords") != (tokenizer is not None):
        raise SpecificationError(
            f"tokens are {specification.tokens} {'without' if tokenizer is None else 'with'} a tokenizer",
            "subwords with a tokenizer, or words without",
            f"give {parameter('tokenizer')} as a file, learn:SIZE or tiktoken:NAME with profile v2, or none",
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
