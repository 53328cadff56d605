"""Report the figures of a training run, and join the reports of successive steps.

`round_report` has the figures of a single round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# Fields of a report that steps add to, and those of which the largest counts; the others are the last step's.
_ADDED = (
    *("sequences", "trained", "tokens", "seconds", "tasks", "messages", "increment_bytes"),
    *("column_touches", "shared_touches"),
)
_LARGEST = ("hot_bytes", "packed_bytes", "spilled_bytes")


@dataclass(frozen=True)
class TrainingReport:
    """Figures of a training run.

    Attributes
    ----------
    sequences, trained, tokens : int
        Counted sequences, those that were trained, and their merged tokens.
    skipped : dict of str to int
        Sequences that were counted and not trained, by reason.
    connections : int
        Distinct connections of the network.
    seconds : float
        Time from the first read to the last commit, without the start of the cluster.
    commit : str
        Identity of the last commit.
    stopped : bool
        Whether it was stopped before the end of the inputs.
    tasks : int
        Training tasks that were submitted.
    messages : int
        Increments of batches (or of accumulated batches) that were sent to a region which they touch.
    increment_bytes : int
        Bytes of these increments.
    column_touches, shared_touches : int
        Columns touched by increments and how many of these touches overlap within a round.
    busiest_region_share : float
        Share of the region with most column touches in all of them.
    regions : int
        Regions at the end.
    hot_bytes, packed_bytes : int
        Most bytes of decoded and of packed runs at the end of a round.
    spilled_bytes : int
        Most bytes that workers had written to their local disks to stay within their memory.
    """

    sequences: int
    trained: int
    skipped: dict[str, int]
    tokens: int
    connections: int
    seconds: float
    commit: str
    stopped: bool = field(default=False)
    tasks: int = field(default=0)
    messages: int = field(default=0)
    increment_bytes: int = field(default=0)
    column_touches: int = field(default=0)
    shared_touches: int = field(default=0)
    busiest_region_share: float = field(default=0.0)
    regions: int = field(default=0)
    hot_bytes: int = field(default=0)
    packed_bytes: int = field(default=0)
    spilled_bytes: int = field(default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


def join_reports(reports: Sequence[TrainingReport]) -> TrainingReport:
    """Return the report of successive steps together."""
    added: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _ADDED}
    largest = {name: max(getattr(report, name) for report in reports) for name in _LARGEST}
    reasons = {reason for report in reports for reason in report.skipped}
    skipped = {reason: sum(report.skipped.get(reason, 0) for report in reports) for reason in sorted(reasons)}
    return replace(reports[-1], skipped=skipped, **added, **largest)
