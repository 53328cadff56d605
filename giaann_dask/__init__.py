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
    from giaann_dask.algebra.certificates import RemovalReport as RemovalReport
    from giaann_dask.algebra.comparison import NetworkDifference as NetworkDifference
    from giaann_dask.api.algebra import add as add
    from giaann_dask.api.algebra import diff as diff
    from giaann_dask.api.algebra import forget as forget
    from giaann_dask.api.algebra import index as index
    from giaann_dask.api.algebra import prune as prune
    from giaann_dask.api.cluster import connect as connect
    from giaann_dask.api.islands import change_keys as change_keys
    from giaann_dask.api.islands import create_island as create_island
    from giaann_dask.api.islands import join_island as join_island
    from giaann_dask.api.islands import merge_bundles as merge_bundles
    from giaann_dask.api.islands import pack_bundle as pack_bundle
    from giaann_dask.api.network import Network as Network
    from giaann_dask.api.network import open as open
    from giaann_dask.api.text_options import TextOptions as TextOptions
    from giaann_dask.api.training import Training as Training
    from giaann_dask.api.training import encode as encode
    from giaann_dask.api.training import new_inputs as new_inputs
    from giaann_dask.api.training import train as train
    from giaann_dask.cluster import ClusterOptions as ClusterOptions
    from giaann_dask.cluster import roles_of as roles_of
    from giaann_dask.cluster import start_cluster as start_cluster
    from giaann_dask.diagnostics.evaluation_report import save_report as save_report
    from giaann_dask.diagnostics.pictures.charts import draw_difference as draw_difference
    from giaann_dask.diagnostics.pictures.draw_options import DrawOptions as DrawOptions
    from giaann_dask.errors import GiaannError as GiaannError
    from giaann_dask.islands.definition import Island as Island
    from giaann_dask.islands.merging import MergeReport as MergeReport
    from giaann_dask.islands.pack_options import PackOptions as PackOptions
    from giaann_dask.islands.packing import PackReport as PackReport
    from giaann_dask.models.columns.model import ColumnsModel as ColumnsModel
    from giaann_dask.models.columns.state.inference_options import InferenceOptions as InferenceOptions
    from giaann_dask.models.columns.state.inference_options import V2Settings as V2Settings
    from giaann_dask.models.generation_options import BatchOptions as BatchOptions
    from giaann_dask.models.generation_options import BeamOptions as BeamOptions
    from giaann_dask.models.generation_options import EvaluationOptions as EvaluationOptions
    from giaann_dask.models.generation_options import GenerationOptions as GenerationOptions
    from giaann_dask.models.generation_options import SamplingOptions as SamplingOptions
    from giaann_dask.models.words.counted_model import CountedModel as CountedModel
    from giaann_dask.models.words.score_report import ScoreReport as ScoreReport
    from giaann_dask.models.words.score_report import ScoringOptions as ScoringOptions
    from giaann_dask.models.words.seen_words import SeenWords as SeenWords
    from giaann_dask.models.words.seen_words import SparseProbabilities as SparseProbabilities
    from giaann_dask.models.words.stream import Context as Context
    from giaann_dask.object_urls import place as place
    from giaann_dask.planning.estimate import TrainingPlan as TrainingPlan
    from giaann_dask.planning.estimate import plan as plan
    from giaann_dask.planning.hardware import Hardware as Hardware
    from giaann_dask.planning.hardware import Machines as Machines
    from giaann_dask.rows.protocol import RowOptions as RowOptions
    from giaann_dask.serving.network_server import Server as Server
    from giaann_dask.serving.network_server import serve as serve
    from giaann_dask.serving.serving_options import ServingOptions as ServingOptions
    from giaann_dask.spec import Specification as Specification
    from giaann_dask.store.corpus import EncodedCorpus as EncodedCorpus
    from giaann_dask.text.inputs import Files as Files
    from giaann_dask.text.read_options import ReadOptions as ReadOptions
    from giaann_dask.training.training_options import SelectionOptions as SelectionOptions
    from giaann_dask.training.training_options import TrainingOptions as TrainingOptions

# The public names of each module.
_HOMES = {
    "algebra.comparison": ("NetworkDifference",),
    "algebra.certificates": ("RemovalReport",),
    "api.algebra": ("add", "diff", "forget", "index", "prune"),
    "api.cluster": ("connect",),
    "api.islands": ("change_keys", "create_island", "join_island", "merge_bundles", "pack_bundle"),
    "api.network": ("Network", "open"),
    "api.text_options": ("TextOptions",),
    "api.training": ("Training", "encode", "new_inputs", "train"),
    "cluster": ("ClusterOptions", "roles_of", "start_cluster"),
    "diagnostics.evaluation_report": ("save_report",),
    "diagnostics.pictures.charts": ("draw_difference",),
    "diagnostics.pictures.draw_options": ("DrawOptions",),
    "errors": ("GiaannError",),
    "islands.definition": ("Island",),
    "islands.merging": ("MergeReport",),
    "islands.pack_options": ("PackOptions",),
    "islands.packing": ("PackReport",),
    "models.columns.model": ("ColumnsModel",),
    "models.columns.state.inference_options": ("InferenceOptions", "V2Settings"),
    "models.generation_options": (
        *("BatchOptions", "BeamOptions", "EvaluationOptions", "GenerationOptions", "SamplingOptions"),
    ),
    "models.words.counted_model": ("CountedModel",),
    "models.words.score_report": ("ScoreReport", "ScoringOptions"),
    "models.words.seen_words": ("SeenWords", "SparseProbabilities"),
    "models.words.stream": ("Context",),
    "object_urls": ("place",),
    "planning.estimate": ("TrainingPlan", "plan"),
    "planning.hardware": ("Hardware", "Machines"),
    "rows.protocol": ("RowOptions",),
    "serving.network_server": ("Server", "serve"),
    "serving.serving_options": ("ServingOptions",),
    "spec": ("Specification",),
    "store.corpus": ("EncodedCorpus",),
    "text.inputs": ("Files",),
    "text.read_options": ("ReadOptions",),
    "training.training_options": ("SelectionOptions", "TrainingOptions"),
}
_MODULES = {name: f"giaann_dask.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULES)

provide_code_cache()

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
