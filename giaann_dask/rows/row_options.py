"""Validate the options of the access of inference tasks to rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from giaann_dask.errors import require_one_of, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.rows.messages import LEAST_BYTES

Mode = Literal["auto", "replicated", "remote"]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of the access of inference tasks to rows.

    Parameters
    ----------
    mode : {"auto", "replicated", "remote"}
        Where workers find rows. ``"replicated"``: every worker gets all regions. ``"remote"``: workers request the
        rows they need from the owners of the regions. ``"auto"``: regions are replicated where all workers are in
        this process, which copies nothing, and where all of them together take no more than `replicated_share` of
        the memory of the smallest worker; a task that continues a single prompt reads its rows from the store
        instead.
    replicated_share : float
        Share of the smallest worker's memory limit that replicated regions may take with ``"auto"``, above 0 to 1.
    cache_bytes : int
        Bytes of rows that a process keeps; 0 keeps none.
    answer_bytes : int
        Bytes of rows that a worker sends in one message, 64 or more; what is beyond, as of a giant row, is asked for
        by further messages.
    timeout_s : float
        Seconds after which a row that nobody answers is an error. Longer than it takes to replace a
        hung worker (2 minutes by default) and to read a region.
    request_s : float
        Seconds after which an owner that does not answer is asked again.

    Raises
    ------
    OptionError
        If a value is out of range.

    Examples
    --------
    >>> RowOptions(mode="remote", cache_bytes=256 << 20).mode
    'remote'
    """

    mode: Mode = "auto"
    replicated_share: float = 0.25
    cache_bytes: int = 128 << 20
    answer_bytes: int = 32 << 20
    timeout_s: float = 600.0
    request_s: float = 30.0

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, get_args(Mode))
        require_option(0 < self.replicated_share <= 1, "replicated_share", self.replicated_share, "above 0 to 1")
        require_option(self.cache_bytes >= 0, "cache_bytes", self.cache_bytes, "0 or more")
        require_option(self.answer_bytes >= LEAST_BYTES, "answer_bytes", self.answer_bytes, f"{LEAST_BYTES} or more")
        for name in ("timeout_s", "request_s"):
            require_option(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
