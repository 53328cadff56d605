"""Import, in the fork server, the modules that the tasks of this package import, and freeze their objects.

The garbage collector leaves frozen objects out. There are some 170,000, which live as long as the process: collecting
them takes 0.1 s each time, in every worker and while they are imported, and writes to memory that workers share.
"""

from __future__ import annotations

import gc
from importlib import import_module

MODULES = (
    "giaann_dask.api.training",
    "giaann_dask.predict.generation",
    "giaann_dask.models.columns.evaluation.evaluation",
    "giaann_dask.runs.target_sets",
    "giaann_dask.worker_setup",
    "distributed.nanny",
)

gc.disable()
for name in MODULES:
    import_module(name)
# So that the workers that are forked share them, the replacement of a killed one too.
import_module("giaann_dask.cluster.compilation").load_tables()
gc.freeze()
gc.enable()
