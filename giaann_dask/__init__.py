"""giaann_dask: a columnar language model that learns by counting, spread over a Dask cluster.

Covers: the names that notebooks and scripts use, loaded when first used, so that importing the
package costs nothing. Does not cover: anything else; see `giaann_dask.api`.

Examples
--------
>>> import giaann_dask as gd
>>> gd.Specification().segments
8
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from giaann_dask.api import Network, TextOptions, encode, train
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.diagnostics.evaluation_report import save_report
    from giaann_dask.diagnostics.watching.reporter import connect
    from giaann_dask.inference.beam import BeamOptions
    from giaann_dask.inference.best.evaluation import ScoringOptions
    from giaann_dask.inference.evaluating.evaluation import EvaluationOptions
    from giaann_dask.inference.generation import GenerationOptions
    from giaann_dask.inference.options import InferenceOptions
    from giaann_dask.inference.rows.remote import RowOptions
    from giaann_dask.inference.v2.options import V2Settings
    from giaann_dask.spec import Specification
    from giaann_dask.text.corpus import EncodedCorpus
    from giaann_dask.training.options import TrainingOptions

_HOMES = {
    "BeamOptions": "giaann_dask.inference.beam",
    "ClusterOptions": "giaann_dask.cluster",
    "EncodedCorpus": "giaann_dask.text.corpus",
    "EvaluationOptions": "giaann_dask.inference.evaluating.evaluation",
    "GenerationOptions": "giaann_dask.inference.generation",
    "InferenceOptions": "giaann_dask.inference.options",
    "Network": "giaann_dask.api",
    "RowOptions": "giaann_dask.inference.rows.remote",
    "ScoringOptions": "giaann_dask.inference.best.evaluation",
    "Specification": "giaann_dask.spec",
    "TextOptions": "giaann_dask.api",
    "TrainingOptions": "giaann_dask.training.options",
    "V2Settings": "giaann_dask.inference.v2.options",
    "connect": "giaann_dask.diagnostics.watching.reporter",
    "encode": "giaann_dask.api",
    "save_report": "giaann_dask.diagnostics.evaluation_report",
    "train": "giaann_dask.api",
}

__all__ = [
    "BeamOptions",
    "ClusterOptions",
    "EncodedCorpus",
    "EvaluationOptions",
    "GenerationOptions",
    "InferenceOptions",
    "Network",
    "RowOptions",
    "ScoringOptions",
    "Specification",
    "TextOptions",
    "TrainingOptions",
    "V2Settings",
    "connect",
    "encode",
    "save_report",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'giaann_dask' has no attribute {name!r}")
