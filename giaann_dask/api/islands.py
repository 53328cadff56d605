"""Create islands, join them, pack what was trained there as signed bundles, and merge these, from Python.

The work is done by `giaann_dask.islands`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from giaann_dask.algebra.algebra_options import Overlap
from giaann_dask.api.cluster import ClientLike, observe_work
from giaann_dask.api.network import Network
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import read_inputs, sources_of
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.encoding.lexicon import DEFAULT
from giaann_dask.errors import OptionError, SpecificationError, StoreExistsError, describe_difference
from giaann_dask.events import Observer, ignore
from giaann_dask.islands.auditing import AuditOptions
from giaann_dask.islands.definition import (
    Island,
    check_key_names,
    is_public_key,
    read_island,
    read_private_key,
    read_public_key,
    require_cryptography,
    write_island,
)
from giaann_dask.islands.merging import MergeReport
from giaann_dask.islands.merging import merge_bundles as merge_files
from giaann_dask.islands.pack_options import PackOptions
from giaann_dask.islands.packing import PackReport
from giaann_dask.islands.packing import pack_bundle as pack_file
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import local_path
from giaann_dask.models import model_of
from giaann_dask.models.exporting import digest_of
from giaann_dask.object_urls import absolute_place
from giaann_dask.spec import Specification
from giaann_dask.storage import require_writable
from giaann_dask.store.commits import CommitContent
from giaann_dask.store.locking import locked
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.places import remove_place
from giaann_dask.store.unfinished import removed_unless_finished
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.training.target import open_store

if TYPE_CHECKING:
    from giaann_dask.api.texts import Inputs

PathLike = str | os.PathLike[str]


@names_keywords
def create_island(
    network: PathLike | Network,
    island: PathLike,
    keys: Mapping[str, PathLike],
    *,
    specification: Specification | None = None,
    ever_pos: str | None = None,
    **keywords: Any,
) -> Island:
    """Write the island file of a network, which is created if it does not exist.

    Parameters
    ----------
    network : str, Path or Network
        Network that bundles will be merged into. Its names, as of its last commit or of that at which a `Network` was
        opened, are the base that all islands number alike.
    island : str or Path
        The new file, to be sent to all islands.
    keys : mapping of str to path or str
        Public keys by name: files in PEM, or 64 hexadecimal digits. More can be added later (`change_keys`).
    specification : Specification, optional
        Of a new network, with canonical flags or of profile ``contexts``; profile ``v1`` by default.
    ever_pos : str, optional
        Of a new network: ``lemminflect`` or the path of a JSON file.
    **keywords
        Fields of `specification` by their names.

    Returns
    -------
    Island

    Raises
    ------
    GiaannError
        If something is at the path, the network depends on the order of its text, or a key cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> island = create_island(folder / "village", folder / "village.island", {"mill": "ab" * 32})
    >>> join_island(folder / "village.island", folder / "mill").manifest.sequences
    0
    """
    path, place = local_path(island), absolute_place(os.fspath(network))
    if path.exists():
        raise StoreExistsError(f"there is a file {path}", "a new path", "change its keys with giaann-dask island keys")
    require_writable(path)
    listed = _read_keys(keys)
    store = open_store(place)
    new = store is None
    if store is None:
        # An island checks that the network will not depend on the order of its text.
        begun = Island(specification=specification or Specification(), ever_pos=EverPos()).specification
        model_of(begun).require_trainable(begun)
        store = NetworkStore.create(place, Manifest.new(begun), _lexicon(begun, ever_pos))
    reader = store.open(_commit_of(network, store))
    stored = reader.manifest().specification
    reader.manifest().require_sum(place)
    if specification is not None and specification.without_regions() != stored.without_regions():
        found, wanted = describe_difference(stored.without_regions(), specification.without_regions())
        # One without text may be what was left by a call that was killed before it wrote the file.
        empty = not reader.manifest().sequences
        raise SpecificationError(
            f"network {place} has {found}" + (" and holds no text" if empty else ""),
            f"{wanted} as asked for",
            "leave it out, " + ("remove the network, " if empty else "") + "or name a new network",
        )
    vocabulary = reader.vocabulary()
    made = Island(
        specification=stored,
        ever_pos=reader.ever_pos(),
        concepts=tuple(vocabulary.concepts),
        features=tuple(vocabulary.features[1:]),
        commit=reader.commit,
        digest=digest_of(reader),
        keys=listed,
    )
    try:
        write_island(made, path)
    except BaseException:
        if new:
            # The same call makes both, perhaps with another specification.
            remove_place(place)
        raise
    return made


@names_keywords
def change_keys(island: PathLike, add: Mapping[str, PathLike] | None = None, remove: Sequence[str] = ()) -> Island:
    """Add public keys to an island file and remove others; merged bundles are kept.

    Parameters
    ----------
    island : str or Path
        The file.
    add : mapping of str to path or str, optional
        As in `create_island`; an existing name gets the new key.
    remove : sequence of str
        Names.

    Returns
    -------
    Island

    Raises
    ------
    GiaannError
        If a key cannot be read, or there is no such name.
    """
    path = local_path(island)
    read = read_island(path)
    if missing := sorted(set(remove) - read.keys.keys()):
        raise OptionError(f"the island file {path} has no keys {missing}", f"some of {sorted(read.keys)}", "name these")
    keys = {name: key for name, key in read.keys.items() if name not in remove} | _read_keys(add or {})
    check_key_names(keys)
    changed = replace(read, keys=keys)
    if changed != read:
        write_island(changed, path)
    return changed


@names_keywords
def join_island(island: PathLike, network: PathLike) -> Network:
    """Create the empty network of an island, to be trained with `train`.

    Parameters
    ----------
    island : str or Path
        The island file.
    network : str or Path
        Folder of the new network.

    Returns
    -------
    Network
        With the names of the base and no connections.

    Raises
    ------
    GiaannError
        If the file cannot be read, or something is at the path.
    """
    read = read_island(local_path(island))
    place = absolute_place(os.fspath(network))
    vocabulary = read.vocabulary()
    named = bool(vocabulary.concepts or len(vocabulary.features) > 1)
    with locked(place) as held, removed_unless_finished(place):
        new = Manifest.new(read.specification)
        store = NetworkStore.create(place, new, read.ever_pos, held=held, finished=not named)
        if named:
            store.held, reader = held, store.open(store.head())
            manifest = replace(reader.manifest(), concepts=len(vocabulary.concepts), features=len(vocabulary.features))
            session = store.begin()
            store.write_content(session, reader, CommitContent(manifest, vocabulary, [], reader.placement()))
            store.commit(session, [], reader, manifest)
    return Network(place)


@names_keywords
def pack_bundle(
    network: PathLike | Network,
    inputs: Inputs,
    bundle: PathLike,
    *,
    island: PathLike,
    key: PathLike,
    options: PackOptions | None = None,
    client: ClientLike | None = None,
    text: TextOptions | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> PackReport:
    """Pack the increments of text that a network was trained on into a signed bundle.

    Parameters
    ----------
    network : str, Path or Network
        Trained on all tokens of the text.
    inputs : str, Path, Files or iterable of texts
        The text, as it was given to `train`: it is counted a second time, group by group.
    bundle : str or Path
        The file to write.
    island : str or Path
        The island file.
    key : str or Path
        File of the private key.
    options : PackOptions, optional
        Size of groups, and whether their text is offered to be audited.
    text : TextOptions, optional
        How text is tagged; as in training.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `options` and `text`, and of the options within these, by their names.

    Returns
    -------
    PackReport

    Raises
    ------
    GiaannError
        If the network is not the sum of what the text gives, or the key is not listed; no file is left.
    """
    secret = read_private_key(local_path(key))
    read, path = read_island(local_path(island)), local_path(bundle)
    require_writable(path)
    sources, chosen = read_inputs(inputs, text)
    store = NetworkStore(os.fspath(network))
    reader = store.open(_commit_of(network, store))
    reading = sources_of(read.specification, chosen, read.ever_pos)
    workload, wanted = Workload(sources, chosen.reading, None), options or PackOptions()
    with observe_work(client, workload, progress, observer) as (used, reporting):
        return pack_file(used, reader, read, sources, reading, secret, path, options=wanted, observer=reporting)


@names_keywords
def merge_bundles(
    network: PathLike | Network,
    bundles: Sequence[PathLike],
    *,
    island: PathLike,
    audit: int = 0,
    audit_seed: int | None = None,
    texts: Inputs | None = None,
    overlap: Overlap = "refuse",
    client: ClientLike | None = None,
    text: TextOptions | None = None,
    progress: bool | None = None,
    observer: Observer = ignore,
    **keywords: Any,
) -> list[MergeReport]:
    """Verify bundles and add those that a network does not hold yet, a commit for each.

    Parameters
    ----------
    network : str, Path or Network
        The network of the island.
    bundles : sequence of str or Path
        Files, in any order. When one of them is refused, none is added.
    island : str or Path
        The island file.
    audit : int
        Number of randomly sampled sequences of each bundle; their groups are counted again and compared exactly.
    audit_seed : int, optional
        Seed of the sample, to repeat an audit; unpredictable by default. The commit's message has it.
    texts : str, Path, Files or iterable of texts, optional
        Text of bundles that do not contain it.
    overlap : {"refuse", "once"}
        What to do with a bundle that the network holds in part: refuse it, or add its other groups.
    text : TextOptions, optional
        How the text of bundles is tagged.
    client, progress, observer
        See `giaann_dask.train`.
    **keywords
        Fields of `text`, and of the options within these, by their names.

    Returns
    -------
    list of MergeReport
        One for each bundle, in order.

    Raises
    ------
    BundleError
        If a bundle is refused; nothing has been changed.
    GiaannError
        If the network cannot be written.
    """
    require_cryptography()
    if not bundles:
        raise OptionError("no bundles", "one or more", "name them")
    read = read_island(local_path(island))
    sources, chosen = read_inputs([] if texts is None else texts, text)
    options = AuditOptions(
        sequences=audit,
        seed=secrets.randbits(63) if audit_seed is None else audit_seed,
        inputs=sources,
        sources=sources_of(read.specification, chosen, read.ever_pos),
    )
    store = NetworkStore(os.fspath(network))
    with observe_work(client, Workload(), progress, observer) as (used, reporting):
        return merge_files(used, store, read, list(map(local_path, bundles)), options, overlap, reporting)


def _commit_of(network: PathLike | Network, store: NetworkStore) -> str:
    """Return the commit at which a network was opened, or the last one of its store."""
    return network.commit if isinstance(network, Network) else store.head()


def _read_keys(keys: Mapping[str, PathLike]) -> dict[str, str]:
    """Return public keys by name, read from files where they are not spelled out."""
    read = {name: str(key) if is_public_key(key) else read_public_key(local_path(key)) for name, key in keys.items()}
    check_key_names(read)
    return read


def _lexicon(specification: Specification, ever_pos: str | None) -> EverPos:
    """Return the ever-POS lexicon of a new network."""
    TextOptions(ever_pos=ever_pos).require_fit(specification)
    if not specification.traits.columns:
        return EverPos()
    return EverPos.from_lemminflect() if ever_pos in (None, DEFAULT) else EverPos.from_json(str(ever_pos))
