"""Draw networks: columns and neurons, whole networks as a density, predictions step by step.

Pictures of evaluations are in `giaann_dask.diagnostics.evaluation_report`.
"""
