"""What a notebook uses: train, encode, evaluate and generate in a line each.

Covers: the public names, each loaded when it is first used. Does not cover: networks (`network`), training (`training`)
and what text is (`texts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.lazy import lazy_exports

if TYPE_CHECKING:
    from giaann_dask.api.network import Network
    from giaann_dask.api.texts import TextOptions
    from giaann_dask.api.training import encode, new_inputs, train
    from giaann_dask.diagnostics.monitoring.reporter import connect
    from giaann_dask.inference.batch import BatchOptions
    from giaann_dask.inference.best.evaluation import ScoreReport, ScoringOptions
    from giaann_dask.inference.continuation import GenerationOptions, SamplingOptions
    from giaann_dask.inference.evaluation.evaluation import EvaluationOptions
    from giaann_dask.inference.state.options import InferenceOptions
    from giaann_dask.inference.v2.options import V2Settings
    from giaann_dask.text.corpus import EncodedCorpus
    from giaann_dask.training.options import TrainingOptions

_HOMES = {
    "BatchOptions": "giaann_dask.inference.batch",
    "EncodedCorpus": "giaann_dask.text.corpus",
    "EvaluationOptions": "giaann_dask.inference.evaluation.evaluation",
    "GenerationOptions": "giaann_dask.inference.continuation",
    "InferenceOptions": "giaann_dask.inference.state.options",
    "Network": "giaann_dask.api.network",
    "SamplingOptions": "giaann_dask.inference.continuation",
    "ScoreReport": "giaann_dask.inference.best.evaluation",
    "ScoringOptions": "giaann_dask.inference.best.evaluation",
    "TextOptions": "giaann_dask.api.texts",
    "TrainingOptions": "giaann_dask.training.options",
    "V2Settings": "giaann_dask.inference.v2.options",
    "connect": "giaann_dask.diagnostics.monitoring.reporter",
    "encode": "giaann_dask.api.training",
    "new_inputs": "giaann_dask.api.training",
    "train": "giaann_dask.api.training",
}

__all__ = [
    "BatchOptions",
    "EncodedCorpus",
    "EvaluationOptions",
    "GenerationOptions",
    "InferenceOptions",
    "Network",
    "SamplingOptions",
    "ScoreReport",
    "ScoringOptions",
    "TextOptions",
    "TrainingOptions",
    "V2Settings",
    "connect",
    "encode",
    "new_inputs",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
