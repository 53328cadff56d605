"""The network that training writes to, which may not exist yet.

Covers: opening it or waiting with its creation until there is something to commit, so that a
failed first run leaves nothing behind. Does not cover: training (`trainer`).
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from giaann_dask.errors import SpecificationError, StoreExistsError, parameter
from giaann_dask.network.manifest import Manifest
from giaann_dask.network.placement import Placement
from giaann_dask.network.scaling import require_sums
from giaann_dask.network.store import NetworkStore
from giaann_dask.spec import Specification
from giaann_dask.storage import require_folder
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.vocabulary import Vocabulary


class NetworkTarget:
    """A network to train, existing or new; a context in which no other process writes to it.

    Parameters
    ----------
    path : Path
        Where it is or will be.
    specification : Specification
        Of the network; must equal the stored one.
    ever : EverPos
        Ever-POS lexicon; must equal the stored one.
    store : NetworkStore, optional
        The network, when it exists.
    tokenizer : SubwordTokenizer, optional
        Of a network of subwords; must equal the stored one.

    Raises
    ------
    SpecificationError
        If the network exists with another specification, lexicon or tokenizer, if what the specification
        asks for is no sum, or if subwords are its tokens and there is no tokenizer.
    """

    def __init__(
        self,
        path: Path,
        specification: Specification,
        ever: EverPos,
        store: NetworkStore | None,
        tokenizer: SubwordTokenizer | None = None,
    ) -> None:
        require_sums(specification)
        require_tokenizer(specification, tokenizer)
        self.path = path
        self.specification = specification
        self.ever = ever
        self.tokenizer = tokenizer
        self.store = store
        self._resources = ExitStack()
        if store is not None:
            reader = store.open(store.head())
            check_same("specification", specification.as_dict(), reader.manifest().specification.as_dict(), path)
            check_same("ever-POS lexicon", ever.identity(), reader.ever().identity(), path)
            stored, wanted = (None if each is None else each.identity() for each in (reader.tokenizer(), tokenizer))
            check_same("tokenizer", wanted, stored, path)

    def __enter__(self) -> NetworkTarget:
        """Take the right to write, if the network exists."""
        if self.store is not None:
            self._resources.enter_context(self.store.lock())
        return self

    def __exit__(self, *_: Any) -> None:
        """Give the right to write back."""
        self._resources.close()

    def load(self) -> tuple[Manifest, Vocabulary, Ledger]:
        """Return what the last commit holds besides runs, or what an empty network holds."""
        if self.store is None:
            return Manifest.new(self.specification), self._new_vocabulary(), Ledger()
        reader = self.store.open(self.store.head())
        found = reader.vocabulary()
        # A network that nothing has been committed to has no dictionaries yet.
        vocabulary = found if found.concepts or len(found.features) > 1 else self._new_vocabulary()
        return reader.manifest(), vocabulary, Ledger(reader.ledger())

    def _new_vocabulary(self) -> Vocabulary:
        """Return the dictionaries that training begins with: empty ones, or those of the tokenizer."""
        if self.tokenizer is None:
            return Vocabulary()
        return Vocabulary.of_subwords(self.tokenizer.names, self.specification.column_names)

    def placement(self) -> Placement:
        """Return where neurons belong as of the last commit, or in an empty network."""
        if self.store is None:
            return Placement(Manifest.new(self.specification).first_regions)
        return self.store.open(self.store.head()).placement()

    def ensure(self) -> NetworkStore:
        """Return the store, creating it when it does not exist."""
        if self.store is None:
            manifest = Manifest.new(self.specification)
            self.store = NetworkStore.create(self.path, manifest, self.ever, self.tokenizer)
            self._resources.enter_context(self.store.lock())
        return self.store


def require_tokenizer(specification: Specification, tokenizer: SubwordTokenizer | None) -> None:
    """Raise a `SpecificationError` when the tokens that are asked for and the tokenizer do not agree."""
    if (specification.tokens == "subwords") != (tokenizer is not None):
        raise SpecificationError(
            f"tokens are {specification.tokens} {'without' if tokenizer is None else 'with'} a tokenizer",
            "subwords with a tokenizer, or words without",
            f"give {parameter('tokenizer')} as a file, learn:SIZE or tiktoken:NAME with profile v2, or none",
        )


def open_store(path: Path) -> NetworkStore | None:
    """Return the network at a path, or None when nothing is there.

    Raises
    ------
    StoreExistsError
        If something else is there.
    OptionError
        If the path names an object store.
    """
    require_folder(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    if not (path / "refs").exists():
        raise StoreExistsError(f"{path} exists and is no network", "a new path or a network", "choose another")
    store = NetworkStore(path)
    if store.blank():
        # Nothing was ever committed here, so nothing is lost.
        shutil.rmtree(path)
        return None
    return store


def check_same(what: str, wanted: object, stored: object, path: Path) -> None:
    """Raise a `SpecificationError` when what is asked for differs from what is stored."""
    if wanted != stored:
        raise SpecificationError(
            f"network {path} has {what} {str(stored)[:200]}",
            f"{str(wanted)[:200]} as asked for",
            "leave it out to use the network's own, or train a new network",
        )
