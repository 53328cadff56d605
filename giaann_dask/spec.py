"""The specification of a network: every number that defines what training computes.

Covers: the constants of profile ``v1`` and the segment layout derived from them. A specification
is stored with the network and never changes afterwards.
Does not cover: how a prediction is made (`giaann_dask.inference.options`) and what describes a
machine (`giaann_dask.cluster`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import SpecificationError

# Bit widths of the keys that connections are sorted by (giaann_dask.network.keys).
COLUMN_BITS = 26
FEATURE_BITS = 25
BRANCH_BITS = 7
SEGMENT_BITS = 5
NEURON_BITS = COLUMN_BITS + FEATURE_BITS

MAXIMUM_CONCEPTS = 1 << COLUMN_BITS
MAXIMUM_FEATURES = 1 << FEATURE_BITS
MAXIMUM_BRANCHES = 1 << BRANCH_BITS
MAXIMUM_SEGMENTS = 1 << SEGMENT_BITS
MAXIMUM_TOKENS = 256

PLACEMENTS = ("hash", "balanced", "co-occurrence")


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What a network computes while training, stored with the network.

    Parameters
    ----------
    profile : str
        Name of the set of rules; ``"v1"`` is the only one yet.
    seed_tokens : int
        Tokens of a sentence that are given before prediction starts; also fixes the number of
        segments.
    branches : int
        Dendritic branches of a feature neuron.
    maximum_tokens : int
        Longest raw sentence (in tokens before noun merging) that is read.
    proximity_scale : float
        A connection over distance d gains ``proximity_scale / (d + 1)``.
    strength_bits : int
        Strengths are integers in units of ``2 ** -strength_bits``.
    regions : int
        Number of regions that the columns are dealt to at first; large ones are divided later.
    placement : str
        How columns are dealt to regions: ``"hash"``, ``"balanced"`` (by the connections that they
        are the source of) or ``"co-occurrence"`` (columns that occur together share a region).

    Raises
    ------
    SpecificationError
        If a value is out of range, or the segments do not fit into the seed tokens.

    Examples
    --------
    >>> Specification(seed_tokens=12).segments
    11
    """

    profile: str = "v1"
    seed_tokens: int = 8
    branches: int = 2
    maximum_tokens: int = 80
    proximity_scale: float = 10.0
    strength_bits: int = 20
    regions: int = 8
    placement: str = "hash"

    def __post_init__(self) -> None:
        _require(self.profile == "v1", "profile", self.profile, "v1")
        _require(self.placement in PLACEMENTS, "placement", self.placement, ", ".join(PLACEMENTS))
        _require(self.seed_tokens >= 1, "seed_tokens", self.seed_tokens, "at least 1")
        _require(1 <= self.branches <= MAXIMUM_BRANCHES, "branches", self.branches, f"1 to {MAXIMUM_BRANCHES}")
        _require(
            self.seed_tokens < self.maximum_tokens <= MAXIMUM_TOKENS,
            "maximum_tokens",
            self.maximum_tokens,
            f"more than seed_tokens and at most {MAXIMUM_TOKENS}",
        )
        _require(1 <= self.regions <= 65536, "regions", self.regions, "1 to 65536")
        _require(1 <= self.strength_bits <= 30, "strength_bits", self.strength_bits, "1 to 30")
        _require(0 < self.proximity_scale < 1e6, "proximity_scale", self.proximity_scale, "0 to 1000000")
        _require(
            self.segments <= min(self.seed_tokens, MAXIMUM_SEGMENTS),
            "seed_tokens",
            self.seed_tokens,
            f"a number that its {self.segments} segments fit into, and at most {MAXIMUM_SEGMENTS} of them (6 to 40)",
        )

    @property
    def column_segments(self) -> int:
        """Number of column segments; they are numbered from 0."""
        return self.seed_tokens // 4 + 1

    @property
    def feature_segments(self) -> int:
        """Number of feature segments; they follow the column segments."""
        return math.ceil(self.seed_tokens / 2) + 1

    @property
    def segments(self) -> int:
        """Number of all segments."""
        return self.column_segments + self.feature_segments

    @property
    def last_segment(self) -> int:
        """Number of the last feature segment, that of adjacent tokens."""
        return self.segments - 1

    def increments(self) -> npt.NDArray[np.int64]:
        """Fixed-point increment of a connection by the distance of its tokens.

        Returns
        -------
        ndarray
            Strength units, int64, shape ``(maximum_tokens,)``; entry 0 is 0. The real value is
            ``float32(float32(1 / (d + 1)) * proximity_scale)``, rounded to the nearest unit.
        """
        distance = np.arange(self.maximum_tokens, dtype=np.float64)
        real = (1.0 / (distance + 1.0)).astype(np.float32) * np.float32(self.proximity_scale)
        units = np.rint(real.astype(np.float64) * (1 << self.strength_bits)).astype(np.int64)
        units[0] = 0
        return units

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Specification:
        """Rebuild a stored specification.

        Raises
        ------
        SpecificationError
            If a field is unknown or out of range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - names)
        if unknown:
            raise SpecificationError(
                f"the stored specification has unknown fields {unknown}",
                f"only {sorted(names)}",
                "open the network with the version of giaann_dask that wrote it",
            )
        return cls(**fields)


def _require(valid: bool, name: str, value: object, expected: str) -> None:
    """Raise a SpecificationError that names the field when it is not valid."""
    if not valid:
        raise SpecificationError(f"{name} is {value!r}", expected, "choose another value")
