"""Evaluate a network of any profile in a job, and compare with earlier evaluations.

Accuracy is computed by `giaann_dask.models.columns.evaluation` and `giaann_dask.models.contexts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from giaann_dask.api.network import Network
from giaann_dask.diagnostics.evaluation_report import save_report
from giaann_dask.events import Observer, ignore
from giaann_dask.models.results import EvaluationReport
from giaann_dask.text.inputs import Files, require_rereadable
from giaann_dask.workflows.exits import DONE
from giaann_dask.workflows.job_options import Measure


def measure(network: Network, wanted: Measure, client: Client, observer: Observer = ignore) -> Measured:
    """Evaluate a network on a text."""
    require_rereadable(wanted.inputs, "a recorded evaluation")
    report = network.evaluate(
        Files(wanted.inputs),
        client=client,
        max_sequences=wanted.max_sequences,
        text=wanted.text,
        progress=False,
        observer=observer,
    )
    return Measured(report, wanted.identity())


@dataclass(frozen=True)
class Measured:
    """An evaluation and the hash of its text."""

    report: EvaluationReport
    identity: str

    @property
    def top1(self) -> float:
        """Share of the predictions that are right."""
        return self.report.top1

    def figures(self) -> dict[str, Any]:
        """Return the fields to write to the history."""
        values = self.report.as_dict()
        names = ("top1", "prediction_tokens", "prediction_matches", "perplexity", "bits_per_byte")
        return {name: values[name] for name in names if name in values} | {"text": self.identity}

    def save(self, path: Path) -> Path:
        """Write the report as one page."""
        return save_report(self.report, path)


def last_passed(history: Iterable[dict[str, Any]], job: str, identity: str) -> dict[str, Any] | None:
    """Return the last run of a job that passed on the same text, or None.

    Failed runs do not count: otherwise lower accuracy would be the reference for the next run.

    Examples
    --------
    >>> runs = [{"job": "a", "exit": 0, "evaluation": {"text": "t", "top1": 0.5}},
    ...         {"job": "a", "exit": 3, "evaluation": {"text": "t", "top1": 0.1}}]
    >>> last_passed(runs, "a", "t")["evaluation"]["top1"]
    0.5
    """
    passed = [
        run
        for run in history
        if run.get("job") == job and run.get("exit") == DONE and run.get("evaluation", {}).get("text") == identity
    ]
    return passed[-1] if passed else None


def has_fallen(top1: float, before: float, tolerance: float) -> bool:
    """Return whether accuracy fell by more than a tolerance, both shares from 0 to 1.

    Examples
    --------
    >>> has_fallen(0.10, 0.11, 0.02), has_fallen(0.08, 0.11, 0.02)
    (False, True)
    """
    # Shares are quotients of counts, so equal ones may differ in the last bit.
    return before - top1 > tolerance + 1e-12
