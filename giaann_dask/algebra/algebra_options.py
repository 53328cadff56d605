"""Validate the options of adding and pruning networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from giaann_dask.errors import OptionError, require_one_of, require_option

if TYPE_CHECKING:
    from giaann_dask.encoding.sources import SourceOptions
    from giaann_dask.text.memory_inputs import Source

Overlap = Literal["refuse", "once"]
OVERLAPS = get_args(Overlap)


@dataclass(frozen=True, kw_only=True, eq=False)
class OverlapOptions:
    """Options of text that several networks hold.

    Parameters
    ----------
    overlap : {"refuse", "once"}
        Refuse text that several networks hold, or count it once.
    inputs : sequence of str or MemoryInput
        That text, for networks none of which has a commit that holds it and nothing else.
    sources : SourceOptions, optional
        How it is read; needed with `inputs`.

    Raises
    ------
    OptionError
        If text is given that is refused.
    """

    overlap: Overlap = "refuse"
    inputs: Sequence[Source] = ()
    sources: SourceOptions | None = None

    def __post_init__(self) -> None:
        require_one_of("overlap", self.overlap, OVERLAPS)
        if self.inputs and self.overlap != "once":
            raise OptionError(
                f"texts with overlap {self.overlap}",
                "text that is to be counted once",
                "set overlap to once, or leave the text out",
                names=("texts", "overlap"),
            )


@dataclass(frozen=True, kw_only=True)
class PruningOptions:
    """Options of pruning: which connections stay. Give one of the two.

    Parameters
    ----------
    min_strength : float, optional
        Keep connections of at least this strength, as stored, before any limit of the specification; for models of
        words, of at least this count.
    keep : float, optional
        Keep the strongest connections, at most this share of all, rounded to a whole connection. Connections of the
        same strength are all kept or all removed, so the result does not depend on order.

    Raises
    ------
    OptionError
        If none or both are given, or one is out of range.

    Examples
    --------
    >>> PruningOptions(keep=0.25).keep
    0.25
    """

    min_strength: float | None = None
    keep: float | None = None

    def __post_init__(self) -> None:
        if (self.min_strength is None) == (self.keep is None):
            found = "neither" if self.keep is None else "both"
            raise OptionError(
                f"{found} of min_strength and keep", "one of them", "give keep alone for a share", names=("keep",)
            )
        for name, most, expected in (
            ("min_strength", 1 << 40, "more than 0, up to 2 ** 40"),
            ("keep", 1, "a share between 0 and 1"),
        ):
            value = getattr(self, name)
            require_option(value is None or 0 < value < most, name, value, expected)
