"""Train and use a columnar language model that learns by counting, on a Dask cluster.

This is the only list of public names. Their modules are imported on first use, so that ``import giaann_dask`` takes
no time.

Examples
--------
>>> import giaann_dask as gd
>>> gd.Specification().segments
8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from giaann_dask.lazy import lazy_exports
from giaann_dask.local_files import provide_code_cache

if TYPE_CHECKING:
    from giaann_dask.algebra.certificates import RemovalReport
    from giaann_dask.algebra.comparison import NetworkDifference
    from giaann_dask.api.algebra import add, diff, forget, index, prune
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.islands import change_keys, create_island, join_island, merge_bundles, pack_bundle
    from giaann_dask.api.network import Network, open
    from giaann_dask.api.planning import plan, simulate
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.api.training import Training, encode, new_inputs, train
    from giaann_dask.cluster import ClusterOptions, roles_of, start_cluster
    from giaann_dask.diagnostics.evaluation_report import save_report
    from giaann_dask.diagnostics.pictures.difference import draw_difference
    from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
    from giaann_dask.errors import GiaannError
    from giaann_dask.islands.definition import Island
    from giaann_dask.islands.merging import MergeReport
    from giaann_dask.islands.pack_options import PackOptions
    from giaann_dask.islands.packing import PackReport
    from giaann_dask.models.columns.evaluation.evaluation_options import EvaluationOptions
    from giaann_dask.models.columns.state.inference_options import InferenceOptions
    from giaann_dask.models.columns.v2.v2_options import V2Settings
    from giaann_dask.models.generation_options import BatchOptions, BeamOptions, GenerationOptions, SamplingOptions
    from giaann_dask.models.words.counted_model import CountedModel
    from giaann_dask.models.words.counted_predictor import SeenWords
    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions
    from giaann_dask.models.words.stream import Context
    from giaann_dask.object_urls import place
    from giaann_dask.planning.hardware import Hardware
    from giaann_dask.planning.search import PlanTarget, TrainingPlan
    from giaann_dask.planning.simulation import SimulationOptions
    from giaann_dask.rows.row_options import RowOptions
    from giaann_dask.serving.network_server import Server, serve
    from giaann_dask.serving.serving_options import ServingOptions
    from giaann_dask.spec import Specification
    from giaann_dask.store.corpus import EncodedCorpus
    from giaann_dask.text.inputs import Files
    from giaann_dask.text.read_options import ReadOptions
    from giaann_dask.training.training_options import SelectionOptions, TrainingOptions

_MODULES = {
    "BatchOptions": "giaann_dask.models.generation_options",
    "BeamOptions": "giaann_dask.models.generation_options",
    "ClusterOptions": "giaann_dask.cluster",
    "Context": "giaann_dask.models.words.stream",
    "CountedModel": "giaann_dask.models.words.counted_model",
    "DrawOptions": "giaann_dask.diagnostics.pictures.draw_options",
    "EncodedCorpus": "giaann_dask.store.corpus",
    "EvaluationOptions": "giaann_dask.models.columns.evaluation.evaluation_options",
    "Files": "giaann_dask.text.inputs",
    "GenerationOptions": "giaann_dask.models.generation_options",
    "GiaannError": "giaann_dask.errors",
    "Hardware": "giaann_dask.planning.hardware",
    "InferenceOptions": "giaann_dask.models.columns.state.inference_options",
    "Island": "giaann_dask.islands.definition",
    "MergeReport": "giaann_dask.islands.merging",
    "Network": "giaann_dask.api.network",
    "NetworkDifference": "giaann_dask.algebra.comparison",
    "PackOptions": "giaann_dask.islands.pack_options",
    "PackReport": "giaann_dask.islands.packing",
    "PlanTarget": "giaann_dask.planning.search",
    "ReadOptions": "giaann_dask.text.read_options",
    "RemovalReport": "giaann_dask.algebra.certificates",
    "RowOptions": "giaann_dask.rows.row_options",
    "SamplingOptions": "giaann_dask.models.generation_options",
    "ScoreReport": "giaann_dask.models.words.score_report",
    "ScoringOptions": "giaann_dask.models.words.score_report",
    "SeenWords": "giaann_dask.models.words.counted_predictor",
    "SelectionOptions": "giaann_dask.training.training_options",
    "Server": "giaann_dask.serving.network_server",
    "ServingOptions": "giaann_dask.serving.serving_options",
    "SimulationOptions": "giaann_dask.planning.simulation",
    "Specification": "giaann_dask.spec",
    "TextOptions": "giaann_dask.api.text_options",
    "Training": "giaann_dask.api.training",
    "TrainingOptions": "giaann_dask.training.training_options",
    "TrainingPlan": "giaann_dask.planning.search",
    "V2Settings": "giaann_dask.models.columns.v2.v2_options",
    "add": "giaann_dask.api.algebra",
    "change_keys": "giaann_dask.api.islands",
    "connect": "giaann_dask.api.cluster",
    "create_island": "giaann_dask.api.islands",
    "diff": "giaann_dask.api.algebra",
    "draw_difference": "giaann_dask.diagnostics.pictures.difference",
    "encode": "giaann_dask.api.training",
    "forget": "giaann_dask.api.algebra",
    "index": "giaann_dask.api.algebra",
    "join_island": "giaann_dask.api.islands",
    "merge_bundles": "giaann_dask.api.islands",
    "new_inputs": "giaann_dask.api.training",
    "open": "giaann_dask.api.network",
    "pack_bundle": "giaann_dask.api.islands",
    "place": "giaann_dask.object_urls",
    "plan": "giaann_dask.api.planning",
    "prune": "giaann_dask.api.algebra",
    "roles_of": "giaann_dask.cluster",
    "save_report": "giaann_dask.diagnostics.evaluation_report",
    "serve": "giaann_dask.serving.network_server",
    "simulate": "giaann_dask.api.planning",
    "start_cluster": "giaann_dask.cluster",
    "train": "giaann_dask.api.training",
}

__all__ = [
    "BatchOptions",
    "BeamOptions",
    "ClusterOptions",
    "Context",
    "CountedModel",
    "DrawOptions",
    "EncodedCorpus",
    "EvaluationOptions",
    "Files",
    "GenerationOptions",
    "GiaannError",
    "Hardware",
    "InferenceOptions",
    "Island",
    "MergeReport",
    "Network",
    "NetworkDifference",
    "PackOptions",
    "PackReport",
    "PlanTarget",
    "ReadOptions",
    "RemovalReport",
    "RowOptions",
    "SamplingOptions",
    "ScoreReport",
    "ScoringOptions",
    "SeenWords",
    "SelectionOptions",
    "Server",
    "ServingOptions",
    "SimulationOptions",
    "Specification",
    "TextOptions",
    "Training",
    "TrainingOptions",
    "TrainingPlan",
    "V2Settings",
    "add",
    "change_keys",
    "connect",
    "create_island",
    "diff",
    "draw_difference",
    "encode",
    "forget",
    "index",
    "join_island",
    "merge_bundles",
    "new_inputs",
    "open",
    "pack_bundle",
    "place",
    "plan",
    "prune",
    "roles_of",
    "save_report",
    "serve",
    "simulate",
    "start_cluster",
    "train",
]

provide_code_cache()

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
