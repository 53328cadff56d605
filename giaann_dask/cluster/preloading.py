"""Load, on import, what the first task of every worker would load: numba's type registries and the tagger's word lists.

The fork server imports this module (`forked_modules`), so that the workers that it forks share these, the replacement
of a killed one too, and workers that are told to compile ahead do (`giaann_dask.cluster.compilation`).
Each would spend half a second on them otherwise. Nothing is compiled here.
"""

from __future__ import annotations

from giaann_dask.lazy import load_registries
from giaann_dask.text.tagging import make_tagger

load_registries()
make_tagger("lexicon")
