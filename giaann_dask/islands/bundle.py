"""Write and read bundles: the increments of text that was trained apart, by groups of its parts, and signed.

A bundle is an archive (`giaann_dask.islands.archive`). Each group has its part of the ledger with the counts that
determine its totals (`totals`), the chunks of its increments as a packed run, and, where it is offered, its text. Then
follow the names that the base lacks, a manifest with the SHA-256 of every member, and an Ed25519 signature of the
manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.errors import BundleError, GiaannError
from giaann_dask.islands.archive import Archive, ArchiveWriter, writing_archive
from giaann_dask.islands.definition import SIGNATURE_BYTES, Island, canonical_json, is_public_key, is_signed, public_of
from giaann_dask.models import totals_of
from giaann_dask.models.totals import GroupCounts
from giaann_dask.representations import text_fault
from giaann_dask.runs.packing import PackedRegionRun, PackedRun
from giaann_dask.spec import MAXIMUM_CONCEPTS, MAXIMUM_FEATURES
from giaann_dask.text.ledger import IDENTITY_BYTES, LedgerEntry
from giaann_dask.text.tokens import Part

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "giaann-dask bundle"
VERSION = 2
MANIFEST, _SIGNATURE, _NAMES = "manifest.json", "signature", "names.json"
_LEDGER, _TEXT = "ledger.json", "text.json"
# Of the tables of a run; an index names sequences of its own network, and no bundle has one.
_TABLES = ("connections", "neurons")
# Precedes what is signed, so that a signature of anything else cannot be one of a bundle.
_SIGNED = f"{FORMAT} {VERSION}\n".encode()
_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, MemoryError)
# Bytes of a member at most, by its name; all others are chunks of increments, or their metadata.
_MOST = {_NAMES: 1 << 30, _LEDGER: 1 << 28, _TEXT: 1 << 32}
_MOST_OF_CHUNK = 1 << 24
# A manifest has a line for each member.
_MOST_OF_MANIFEST, _MOST_OF_LINE = 1 << 12, 1 << 8
_IDENTITY, _DIGEST = re.compile(f"[0-9a-f]{{{2 * IDENTITY_BYTES}}}"), re.compile("[0-9a-f]{64}")


class BundleGroup(NamedTuple):
    """Parts of text that are counted together.

    Attributes
    ----------
    entries : tuple of LedgerEntry
        Of each part; all are complete.
    counts : GroupCounts
        What determines the totals of its strengths.
    """

    entries: tuple[LedgerEntry, ...]
    counts: GroupCounts

    @property
    def empty_parts(self) -> int:
        """Number of its parts that have no sequences, so that no increments show anything of them."""
        return sum(not entry.sequences for entry in self.entries)


class BundleWriter:
    """Append groups to a bundle; made by `writing_bundle`.

    Attributes
    ----------
    groups : int
        Groups so far.
    """

    def __init__(self, archive: ArchiveWriter) -> None:
        self._archive = archive
        self._totals = [0, 0, 0]
        self.groups = 0

    def add(self, group: BundleGroup, run: PackedRegionRun, text: Sequence[Part] | None = None) -> None:
        """Append a group with its increments and, where it is offered, its text."""
        folder = _folder(self.groups)
        counts = group.counts
        ledger = {
            "parts": [[entry.identity.hex(), entry.sequences] for entry in group.entries],
            "by_status": counts.by_status,
            "lengths": counts.lengths,
            "pairs": counts.pairs,
        }
        members = {_LEDGER: canonical_json(ledger)}
        if text is not None:
            members[_TEXT] = canonical_json([_as_dict(part) for part in text])
        for name, table in zip(_TABLES, (run.connections, run.neurons), strict=True):
            members |= {f"{name}/{entry}": content for entry, content in table.entries.items()}
        # In the order of their names, in which they are read.
        for name in sorted(members):
            self._archive.add(folder + name, members[name])
        self.groups += 1
        for place, number in enumerate((counts.sequences, counts.by_status[0], counts.tokens)):
            self._totals[place] += number

    @property
    def tokens(self) -> int:
        """Tokens of the trained sequences so far."""
        return self._totals[2]

    def finish(self, names: Mapping[str, Sequence[str]], island: Island, tagger: str, key: Ed25519PrivateKey) -> None:
        """Append the names that the base lacks, the manifest and its signature."""
        self._archive.add(_NAMES, canonical_json({name: list(words) for name, words in names.items()}))
        sequences, trained, tokens = self._totals
        manifest = canonical_json(
            {
                "format": FORMAT,
                "version": VERSION,
                "island": island.identity,
                "signer": public_of(key),
                "tagger": tagger,
                "groups": self.groups,
                "sequences": sequences,
                "trained": trained,
                "tokens": tokens,
                "members": dict(self._archive.digests),
            }
        )
        self._archive.add(MANIFEST, manifest)
        self._archive.add(_SIGNATURE, key.sign(_SIGNED + manifest))


@contextmanager
def writing_bundle(path: Path) -> Iterator[BundleWriter]:
    """Provide a writer of a bundle, which is at the path only when the context ends without an error."""
    with writing_archive(path) as archive:
        yield BundleWriter(archive)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """A bundle with a valid signature of a listed key, and a ledger that does not contradict itself.

    Attributes
    ----------
    path : Path
        The file.
    identity : str
        SHA-256 of the manifest, which has those of all members.
    signer : str
        Name of the key.
    tagger : str
        What tagged the text.
    sequences, trained, tokens : int
        Counts of the whole.
    groups : tuple of BundleGroup
        In the order of the text.
    concepts, features : tuple of str
        Names that the base lacks.
    """

    path: Path
    identity: str
    signer: str
    tagger: str
    sequences: int
    trained: int
    tokens: int
    groups: tuple[BundleGroup, ...]
    concepts: tuple[str, ...]
    features: tuple[str, ...]
    _members: _Members

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Ledger of the whole."""
        return tuple(entry for group in self.groups for entry in group.entries)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def has_text(self, group: int) -> bool:
        """Return whether the text of a group is offered."""
        return _folder(group) + _TEXT in self._members

    def require_intact(self, groups: Iterable[int]) -> None:
        """Check that every member of some groups is what was signed.

        Raises
        ------
        BundleError
            If one is not.
        """
        for group in groups:
            for name in self._members.under(_folder(group)):
                self._members.read(name)

    def run(self, group: int) -> PackedRegionRun:
        """Return the increments of a group, encoded.

        Raises
        ------
        BundleError
            If a chunk is not the one that was signed, or the header is none.
        """
        return PackedRegionRun(*(self._table(f"{_folder(group)}{name}/") for name in _TABLES))

    def text(self, group: int) -> tuple[Part, ...]:
        """Return the offered text of a group.

        Raises
        ------
        BundleError
            If there is none, or it is not what was signed.
        """
        stored = self._members.json(_folder(group) + _TEXT)
        try:
            return tuple(_part(part, f"{self.path}, group {group}") for part in stored)
        except _ERRORS as error:
            raise self._members.damage("offers text that is none") from error

    def _table(self, folder: str) -> PackedRun:
        entries = {name.removeprefix(folder): self._members.read(name) for name in self._members.under(folder)}
        try:
            return PackedRun.from_entries(entries)
        except (GiaannError, *_ERRORS) as error:
            raise self._members.damage(f"has no increments at {folder}") from error


class _Members:
    """Members of an archive that a signed manifest names, checked whenever they are read."""

    def __init__(self, archive: Archive, digests: Mapping[str, str]) -> None:
        self._archive, self._digests = archive, digests
        self._folders: dict[str, list[str]] = {}
        for name in digests:
            group, _, rest = name.rpartition("/")[0].partition("/")
            number, _, table = rest.partition("/")
            for folder in {f"{group}/{number}/", f"{group}/{number}/{table.partition('/')[0]}/"}:
                self._folders.setdefault(folder, []).append(name)

    def __contains__(self, name: str) -> bool:
        return name in self._digests

    def under(self, folder: str) -> Sequence[str]:
        """Return the members of a group, or of a table of a group."""
        return self._folders.get(folder, [])

    def size(self, name: str) -> int:
        """Return the bytes of a member."""
        return self._archive.size(name)

    def read(self, name: str) -> bytes:
        """Return a member that is what was signed."""
        content = self._archive.read(name, _MOST.get(name.rpartition("/")[2], _MOST_OF_CHUNK))
        if sha256(content).hexdigest() != self._digests.get(name):
            raise self.damage(f"has a member {name} that is not the one signed")
        return content

    def json(self, name: str) -> Any:
        """Return the value of a JSON member."""
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            if isinstance(error, BundleError):
                raise
            raise self.damage(f"has no JSON in {name}") from error

    def damage(self, what: str) -> BundleError:
        """Return the error of the bundle."""
        return _refusal(self._archive.path, what)


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """Manifest of a bundle, which names its members; nothing in it has to be true before its signature is checked.

    Attributes
    ----------
    island : str
        Identity of the island.
    signer, tagger : str
        Public key, and what tagged the text.
    groups, sequences, trained, tokens : int
        Counts of the whole.
    members : mapping of str to str
        SHA-256 of every member by name.
    """

    island: str
    signer: str
    tagger: str
    groups: int
    sequences: int
    trained: int
    tokens: int
    members: Mapping[str, str]

    @classmethod
    def parse(cls, content: bytes, path: Path) -> BundleManifest:
        """Read the manifest of a bundle; raise a BundleError where it is none of this version."""
        try:
            stored = json.loads(content)
            values = {each.name: stored[each.name] for each in fields(cls)}
            intact = (stored["format"], stored["version"]) == (FORMAT, VERSION) and is_public_key(values["signer"])
            intact = intact and isinstance(values["island"], str) and text_fault(values["tagger"]) is None
            numbers = [values[name] for name in ("groups", "sequences", "trained", "tokens")]
            intact = intact and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
            intact = intact and all(map(_DIGEST.fullmatch, values["members"].values()))
        except _ERRORS:
            intact = False
        if not intact:
            raise _refusal(path, f"has no manifest of version {VERSION}")
        return cls(**values)


def read_manifest(archive: Archive) -> bytes:
    """Return the bytes of the manifest of a bundle, of which there are no more than its members need."""
    return archive.read(MANIFEST, _MOST_OF_MANIFEST + _MOST_OF_LINE * len(archive.names))


def open_bundle(path: Path, island: Island) -> Bundle:
    """Open a bundle: check its signature, its format, its ledger and its names; increments are read later.

    Raises
    ------
    InputMissingError
        If it cannot be read.
    BundleError
        If it is not accepted.
    MissingDependencyError
        If ``cryptography`` is not installed.
    """
    archive = Archive(path)
    manifest = read_manifest(archive)
    name = _signer(archive, manifest, island)
    stored = BundleManifest.parse(manifest, path)
    if stored.signer != island.keys[name]:
        raise _refusal(path, "names another key than it is signed with")
    if stored.island != island.identity:
        raise BundleError(f"{path} belongs to another island", "bundles of this one", "name its own island file")
    if archive.names != (*sorted(stored.members), MANIFEST, _SIGNATURE):
        raise _refusal(path, "has other members than its manifest names")
    members = _Members(archive, stored.members)
    try:
        groups = tuple(_group(members, number, island) for number in range(stored.groups))
        names = members.json(_NAMES)
        if not all(isinstance(names[kind], list) for kind in ("concepts", "features")):
            raise ValueError
        bundle = Bundle(
            path=path,
            identity=sha256(manifest).hexdigest(),
            signer=name,
            tagger=stored.tagger,
            sequences=stored.sequences,
            trained=stored.trained,
            tokens=stored.tokens,
            groups=groups,
            concepts=tuple(names["concepts"]),
            features=tuple(names["features"]),
            _members=members,
        )
    except BundleError:
        raise
    except _ERRORS as error:
        raise _refusal(path, "has a ledger or names that are none") from error
    _check(bundle, island, len(stored.members))
    return bundle


def _signer(archive: Archive, manifest: bytes, island: Island) -> str:
    """Return the name of the key that a bundle is signed with, before anything in it is used.

    Raises
    ------
    BundleError
        If it is none of the island's.
    """
    signed, signature = _SIGNED + manifest, archive.read(_SIGNATURE, SIGNATURE_BYTES)
    found = (name for name, key in island.keys.items() if is_signed(signed, signature, key))
    if (name := next(found, None)) is None:
        raise BundleError(
            f"{archive.path} is not signed by a listed key",
            f"one of {sorted(island.keys)}",
            "add the key with island keys, or ask for the bundle again",
        )
    return name


def _group(members: _Members, number: int, island: Island) -> BundleGroup:
    """Read the ledger of a group and check it."""
    stored = members.json(_folder(number) + _LEDGER)
    counts = GroupCounts.from_dict(stored)
    entries = []
    for identity, sequences in stored["parts"]:
        if type(sequences) is not int or sequences < 0 or not _IDENTITY.fullmatch(identity):
            raise ValueError("parts of another kind")
        entries.append(LedgerEntry(bytes.fromhex(identity), sequences, True))
    text = f"{_folder(number)}{_TEXT}"
    with naming(members.damage, number):
        totals_of(island.specification).check_counts(counts, sum(entry.sequences for entry in entries))
        # Every token, and every sequence, is a character of the text or more.
        if text in members and max(counts.tokens, counts.sequences) > members.size(text):
            raise BundleError(f"{counts.tokens:,} tokens", "no more than its text has")
    if not entries:
        raise ValueError("a group without parts")
    return BundleGroup(tuple(entries), counts)


@contextmanager
def naming(damage: Any, group: int) -> Iterator[None]:
    """Add to a refusal which bundle and group it is about."""
    try:
        yield
    except BundleError as error:
        raise damage(f"has in group {group} {error.received}, not {error.expected}") from error


def _check(bundle: Bundle, island: Island, members: int) -> None:
    """Check the totals, names and members of a bundle."""
    counts = [group.counts for group in bundle.groups]
    found = (
        sum(each.sequences for each in counts),
        sum(each.by_status[0] for each in counts),
        sum(each.tokens for each in counts),
    )
    if found != (bundle.sequences, bundle.trained, bundle.tokens) or not counts:
        raise _refusal(bundle.path, f"has groups of {found} sequences, trained ones and tokens, not what it says")
    if len({entry.identity for entry in bundle.entries}) < len(bundle.entries):
        raise _refusal(bundle.path, "has a part of text twice")
    limits = (
        (bundle.concepts, island.concepts, MAXIMUM_CONCEPTS),
        (bundle.features, island.features, MAXIMUM_FEATURES),
    )
    for new, base, most in limits:
        whole = {*new, *base}
        intact = all(isinstance(name, str) and text_fault(name) is None for name in new)
        if not intact or len(whole) != len(new) + len(base) or len(whole) >= most:
            raise _refusal(bundle.path, "has names that are none, or are there twice")
    if bundle.concepts and not island.specification.traits.columns:
        raise _refusal(bundle.path, f"has columns, which profile {island.specification.profile} has not")
    known = 1 + sum(
        1 + bundle.has_text(number) + sum(len(bundle._members.under(f"{_folder(number)}{name}/")) for name in _TABLES)
        for number in range(len(bundle.groups))
    )
    if known != members:
        raise _refusal(bundle.path, "has members that no bundle has")


def _folder(group: int) -> str:
    return f"groups/{group:08d}/"


def _as_dict(part: Part) -> dict[str, Any]:
    """Return a part as JSON-ready values; documents are counted from 0, so that they do not depend on what was read."""
    first = part.documents[0]
    return {
        "kind": part.kind,
        "passages": list(part.passages),
        "documents": [document - first for document in part.documents],
    }


def _part(stored: Mapping[str, Any], source: str) -> Part:
    """Return a stored part of text; raise an error where it is none."""
    part = Part(source, stored["kind"], tuple(stored["passages"]), tuple(stored["documents"]))
    texts = all(isinstance(passage, str) and text_fault(passage) is None for passage in part.passages)
    numbered = all(type(document) is int and 0 <= document < 1 << 31 for document in part.documents)
    if part.kind not in ("text", "conllu") or not (part.passages and texts and numbered):
        raise ValueError("a part of another kind")
    if len(part.documents) != len(part.passages):
        raise ValueError("a document for each passage")
    return part


def _refusal(path: Path, what: str) -> BundleError:
    return BundleError(f"the bundle {path} {what}", "what giaann-dask island pack writes", "request it again")
