"""Define the manifest of a commit: counts, sizes of the dictionaries and the runs of every region, as plain values.

`commits` reads and writes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar, cast

from giaann_dask.errors import RESTORE, SpecificationError, StoreDamagedError
from giaann_dask.runs.placement import FIRST_REGIONS, Split
from giaann_dask.runs.run import RunSize
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import STATUS_NAMES


@dataclass(frozen=True)
class StoredRun:
    """A stored run of a region.

    Attributes
    ----------
    identity : str
        Name of its group.
    region, rank : int
        Where it belongs.
    neurons, connections : int
        Its size.
    nbytes : int
        Bytes of its encoded form, neurons' own strengths and postings included.
    index_bytes : int
        Those of the postings.
    """

    identity: str
    region: int
    rank: int
    neurons: int
    connections: int
    nbytes: int
    index_bytes: int = 0

    @classmethod
    def of(cls, identity: str, region: int, rank: int, size: RunSize) -> StoredRun:
        """Return the record of a run of some size."""
        return cls(identity, region, rank, size.neurons, size.connections, size.nbytes, size.index_bytes)

    @property
    def size(self) -> RunSize:
        """Its size, with the bytes of its encoded form."""
        return RunSize(self.neurons, self.connections, self.nbytes, self.index_bytes)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything of a commit but its text and its runs' contents.

    Attributes
    ----------
    specification : Specification
        What training computes.
    by_status : tuple of int
        Counted sequences by status, in the order of `STATUS_NAMES`.
    tokens : int
        Merged tokens of the trained sequences.
    concepts, features : int
        Sizes of the dictionaries.
    saved_concepts, saved_features : int
        Their sizes after the last trained sequence, from which inference starts.
    last_trained : int
        Number of that sequence; -1 for none.
    neurons, connections : int
        Distinct trained neurons and connections.
    exact : bool
        Whether these two are; else they count twice what two runs have, as in a commit in the midst of
        training.
    rounds : int
        Rounds of training so far, which name new runs.
    runs : tuple of StoredRun
        By region, of falling rank.
    splits : tuple of Split
        Of regions that had grown too large.
    load : tuple of int
        What the placement counted of each first region; empty where it counts nothing.
    counts : mapping of int to RunSize
        Of regions with several runs, as far as these have been counted.
    begun_with : int or None
        Regions before any split where these are fewer than the specification says, as in a network that may have
        many; None where they are as many.
    pruned_below : int
        Strength units, below which `giaann_dask.algebra.pruning` has left out connections; 0 in a network that has
        all connections of its text.
    trained_on_misses : bool
        Whether sequences were trained only to the tokens that the network missed (`TrainingOptions.train_on`), which
        depend on what it held before.
    """

    specification: Specification
    by_status: tuple[int, ...] = (0,) * len(STATUS_NAMES)
    tokens: int = 0
    concepts: int = 0
    features: int = 1
    saved_concepts: int = 0
    saved_features: int = 1
    last_trained: int = -1
    neurons: int = 0
    connections: int = 0
    exact: bool = True
    rounds: int = 0
    runs: tuple[StoredRun, ...] = field(default=())
    splits: tuple[Split, ...] = field(default=())
    load: tuple[int, ...] = field(default=())
    counts: Mapping[int, RunSize] = field(default_factory=dict)
    begun_with: int | None = None
    pruned_below: int = 0
    trained_on_misses: bool = False

    @classmethod
    def new(cls, specification: Specification) -> Manifest:
        """Return the manifest of a network that nothing has been trained on.

        Examples
        --------
        >>> Manifest.new(Specification(regions=1000)).first_regions, Manifest.new(Specification(regions=8)).begun_with
        (4, 4)
        """
        begun_with = FIRST_REGIONS if specification.regions > FIRST_REGIONS else None
        return cls(specification=specification, begun_with=begun_with)

    @property
    def first_regions(self) -> int:
        """Regions before any split."""
        return self.specification.regions if self.begun_with is None else self.begun_with

    @property
    def regions(self) -> int:
        """Regions that the neurons are dealt to now."""
        return self.first_regions + len(self.splits)

    def runs_by_region(self) -> dict[int, list[StoredRun]]:
        """Return the runs of every region that has any, by region in ascending order."""
        found: dict[int, list[StoredRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.region):
            found.setdefault(run.region, []).append(run)
        return found

    @property
    def sequences(self) -> int:
        """Counted sequences, whether trained or skipped."""
        return sum(self.by_status)

    @property
    def trained(self) -> int:
        """Sequences that were divided into columns and trained."""
        return self.by_status[0]

    def index_size(self) -> dict[str, float]:
        """Return the bytes of the index, of the network without it, and of the index for each connection."""
        nbytes = sum(run.index_bytes for run in self.runs)
        rest = sum(run.nbytes for run in self.runs) - nbytes
        return {"bytes": nbytes, "network_bytes": rest, "bytes_per_connection": nbytes / max(self.connections, 1)}

    def require_whole(self, path: object) -> None:
        """Raise a `SpecificationError` of the network at a path when connections of its text were left out."""
        if self.pruned_below:
            raise SpecificationError(
                f"network {path} was pruned, so that its strengths are no longer the sum over its text",
                "a network that has all connections of its text",
                "take the one that it was made of, and prune the result",
            )

    def require_sum(self, path: object) -> None:
        """Raise a `SpecificationError` of the network at a path when it is not the sum over its text, in any order."""
        self.require_whole(path)
        self.specification.require_order_free(f"network {path}")
        self.require_all_tokens(path)

    def require_all_tokens(self, path: object) -> None:
        """Raise a `SpecificationError` of the network at a path when it was trained on a part of its tokens."""
        if self.trained_on_misses:
            raise SpecificationError(
                f"network {path} was trained on the tokens that it missed, which depend on what it held before",
                "a network that was trained on all tokens of its text",
                "train a new network without train_on=misses",
            )

    def skipped(self) -> dict[str, int]:
        """Return the counted sequences that were not trained, by reason; rare reasons only where they occur."""
        counts = dict(zip(STATUS_NAMES, self.by_status, strict=True))
        return {name: counts[name] for name in STATUS_NAMES[1:] if counts[name] or name in STATUS_NAMES[1:3]}

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        counts = [
            {"region": region, "neurons": size.neurons, "connections": size.connections}
            for region, size in self.counts.items()
        ]
        # A target is stored where a row was divided alone.
        splits = [list(split[: 2 + (split.target > 0)]) for split in self.splits]
        return {**asdict(self), "specification": self.specification.as_dict(), "counts": counts, "splits": splits}

    @classmethod
    def from_dict(cls, fields: object, what: str = "the network") -> Manifest:
        """Rebuild a stored manifest, and check that nothing in it contradicts itself.

        Parameters
        ----------
        fields : object
            What is stored: a mapping, or None where there is nothing.
        what : str
            What it is the manifest of, for errors.

        Raises
        ------
        StoreDamagedError
            If it is missing, lacks a field, or has one of a wrong kind or a value that cannot be.
        SpecificationError
            If the specification is one of another version.
        """
        check = _Check(what)
        check(isinstance(fields, Mapping), "", "missing" if fields is None else fields, "a mapping of fields")
        values = dict(cast(Mapping[str, Any], fields))
        known = {each.name for each in dataclass_fields(cls)}
        check(not (missing := sorted(known - values.keys())), "", f"without {missing}", "all fields")
        check(
            not (unknown := sorted(values.keys() - known)), "", f"with the unknown fields {unknown}", "known ones alone"
        )
        check(isinstance(values["specification"], Mapping), "specification", values["specification"], "a mapping")
        values["specification"] = Specification.from_dict(values["specification"])
        values["by_status"] = check.integers("by_status", values["by_status"], len(STATUS_NAMES))
        values["runs"] = check.rows("runs", StoredRun, values["runs"])
        values["splits"] = tuple(check.split(split) for split in check.items("splits", values))
        values["load"] = check.integers("load", values["load"])
        counted = check.rows("counts", _StoredCount, values["counts"])
        values["counts"] = {count.region: RunSize(count.neurons, count.connections) for count in counted}
        for name in _COUNTS:
            check.integer(name, values[name])
        check.integer("pruned_below", values["pruned_below"], most=_LARGEST)
        check.integer("last_trained", values["last_trained"], -1)
        for name in ("exact", "trained_on_misses"):
            check(type(values[name]) is bool, name, values[name], "true or false")
        if values["begun_with"] is not None:
            check.integer("begun_with", values["begun_with"], 1)
        manifest = cls(**values)
        _check_sizes(manifest, check)
        _check_regions(manifest, check)
        return manifest


_COUNTS = (
    "tokens",
    "concepts",
    "features",
    "saved_concepts",
    "saved_features",
    "neurons",
    "connections",
    "rounds",
)
# Largest number of a manifest, so that sums of them fit into 64 bits; that of keys of neurons and of strengths.
_MOST, _LARGEST = 1 << 48, (1 << 63) - 1


@dataclass(frozen=True)
class _StoredCount:
    """Connections and neurons of a region, as the manifest stores them."""

    region: int
    neurons: int
    connections: int


_Row = TypeVar("_Row", StoredRun, _StoredCount)
_IDENTITY = re.compile(r"[0-9]+\.[0-9]+-[0-9]+")


class _Check:
    """Raises a `StoreDamagedError` if a manifest does not satisfy a condition.

    Parameters
    ----------
    what : str
        What it is the manifest of.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, holds: bool, name: str, found: object, expected: str) -> None:
        """Raise the error of a field, or of the manifest as a whole, unless a condition holds."""
        if not holds:
            field = f"{name} in the manifest" if name else "the manifest"
            raise StoreDamagedError(f"{field} of {self._what} is {str(found)[:200]}", expected, RESTORE)

    def integer(self, name: str, value: object, least: int = 0, most: int = _MOST) -> int:
        """Return a value that has to be an integer of at least and at most so much."""
        self(type(value) is int and value >= least, name, repr(value), f"a whole number of at least {least}")
        found = cast(int, value)
        self(found <= most, name, f"{found:,}", f"a whole number of at most {most:,}")
        return found

    def integers(self, name: str, values: object, length: int | None = None, most: int = _MOST) -> tuple[int, ...]:
        """Return values that have to be integers from 0 to so much, as many as this where a length is given."""
        self(isinstance(values, Sequence) and not isinstance(values, str), name, repr(values), "a list of numbers")
        found = tuple(self.integer(name, value, most=most) for value in cast(Sequence[object], values))
        self(length in (None, len(found)), name, found, f"{length} numbers")
        return found

    def split(self, values: object) -> Split:
        """Return values that have to be a region and where it was split."""
        found = self.integers("splits", values, most=_LARGEST)
        self(len(found) in (2, 3) and found[2:] != (0,), "splits", found, "2 numbers, or 3 of which the last is not 0")
        return Split(*found)

    def items(self, name: str, values: Mapping[str, Any]) -> Sequence[object]:
        """Return a field that has to be a list."""
        found = values[name]
        self(isinstance(found, list | tuple), name, repr(found), "a list")
        return cast(Sequence[object], found)

    def rows(self, name: str, kind: type[_Row], values: object) -> tuple[_Row, ...]:
        """Return a list of values of a class whose fields, except identities, must be integers of at least 0."""
        names = {each.name for each in dataclass_fields(kind)}
        made = []
        for row in self.items(name, {name: values}):
            same = isinstance(row, Mapping) and row.keys() == names
            self(same, f"an entry of {name}", repr(row), f"the fields {sorted(names)}")
            stored = cast(Mapping[str, Any], row)
            for field_name, value in stored.items():
                if field_name == "identity":
                    intact = isinstance(value, str) and _IDENTITY.fullmatch(value) is not None
                    self(
                        intact,
                        f"an identity of {name}",
                        repr(value),
                        "a region and rounds, such as 00000.00000000-00000003",
                    )
                else:
                    self.integer(f"{field_name} of an entry of {name}", value)
            made.append(kind(**stored))
        return tuple(made)


def _check_sizes(manifest: Manifest, check: _Check) -> None:
    """Check that the counts of a manifest agree with each other."""
    for name in ("concepts", "features"):
        saved, size = getattr(manifest, f"saved_{name}"), getattr(manifest, name)
        check(saved <= size, f"saved_{name}", saved, f"no more than the {size} {name}")
    sequences = manifest.sequences
    check(manifest.last_trained < max(sequences, 1), "last_trained", manifest.last_trained, f"less than {sequences}")
    for name in ("neurons", "connections"):
        most = sum(getattr(run, name) for run in manifest.runs)
        check(getattr(manifest, name) <= most, name, getattr(manifest, name), f"no more than the {most} of its runs")


def _check_regions(manifest: Manifest, check: _Check) -> None:
    """Check that runs, splits and counts belong to existing regions."""
    begun_with, asked = manifest.first_regions, manifest.specification.regions
    check(begun_with <= asked, "begun_with", begun_with, f"no more than the {asked} regions of the specification")
    live = set(range(begun_with))
    for number, split in enumerate(manifest.splits):
        check(split.region in live, "splits", tuple(split), "a region that there is at that time")
        live = live - {split.region} | {begun_with + 2 * number, begun_with + 2 * number + 1}
    identities = [run.identity for run in manifest.runs]
    twice = [identity for identity, times in Counter(identities).items() if times > 1]
    check(not twice, "runs", f"a list with {twice[:3]} more than once", "each run once")
    for name, regions in (("runs", {run.region for run in manifest.runs}), ("counts", set(manifest.counts))):
        gone = sorted(regions - live)
        check(not gone, name, f"of the regions {gone[:5]}", "regions that there are")
    check(len(manifest.load) in (0, begun_with), "load", f"of {len(manifest.load)} regions", f"none or {begun_with}")
