"""The manifest: what a commit of a network consists of, as plain values.

Covers: counts, sizes of the dictionaries, and the runs of every region. Does not cover: reading
and writing it (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from giaann_dask.errors import StoreDamagedError
from giaann_dask.runs.placement import FIRST_REGIONS, Split
from giaann_dask.runs.run import RunSize
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import STATUS_NAMES


@dataclass(frozen=True)
class StoredRun:
    """A run of a region as the store holds it.

    Attributes
    ----------
    identity : str
        Name of its group.
    region, rank : int
        Where it belongs.
    neurons, connections : int
        Its size.
    nbytes : int
        Bytes of its encoded form, neurons' own strengths included.
    """

    identity: str
    region: int
    rank: int
    neurons: int
    connections: int
    nbytes: int


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

    @classmethod
    def new(cls, specification: Specification) -> Manifest:
        """Return the manifest of a network that nothing has been trained on.

        Examples
        --------
        >>> Manifest.new(Specification(regions=1000)).first_regions, Manifest.new(Specification(regions=8)).begun_with
        (16, None)
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

    def skipped(self) -> dict[str, int]:
        """Return the counted sequences that were not trained, by reason; rare reasons only where they occur."""
        counts = dict(zip(STATUS_NAMES, self.by_status, strict=True))
        return {name: counts[name] for name in STATUS_NAMES[1:] if counts[name] or name in STATUS_NAMES[1:3]}

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        # What is younger than the first version of the format is stored only where there is any.
        by_status = self.by_status if self.by_status[-1] else self.by_status[:-1]
        values = {**asdict(self), "by_status": by_status, "specification": self.specification.as_dict()}
        values["counts"] = [
            {"region": region, "neurons": size.neurons, "connections": size.connections}
            for region, size in self.counts.items()
        ]
        absent = {*(() if self.counts else ("counts",)), *(() if self.begun_with is not None else ("begun_with",))}
        return {name: value for name, value in values.items() if name not in absent}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Manifest:
        """Rebuild a stored manifest.

        Raises
        ------
        StoreDamagedError
            If it lacks a field or has one of a wrong kind.
        """
        try:
            values = dict(fields)
            values["specification"] = Specification.from_dict(values["specification"])
            counts = tuple(values["by_status"])
            values["by_status"] = counts + (0,) * (len(STATUS_NAMES) - len(counts))
            values["runs"] = tuple(StoredRun(**run) for run in values["runs"])
            values["splits"] = tuple(Split(*split) for split in values["splits"])
            values["load"] = tuple(values["load"])
            values["counts"] = {
                count["region"]: RunSize(count["neurons"], count["connections"]) for count in values.get("counts", ())
            }
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise StoreDamagedError(f"the manifest of the network is incomplete ({error})") from error
