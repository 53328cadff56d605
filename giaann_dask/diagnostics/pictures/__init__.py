"""Draw networks: columns and neurons, whole networks as a density, predictions step by step.

Covers: choosing (`choosing`), colour schemes (`schemes`), where things stand (`layout`), the picture
(`drawing`), its file (`files`), the interactive page (`interactive`), the density of a whole network
(`density`), and predictions (`prediction`, `animation`). Does not cover: pictures of evaluations
(`giaann_dask.diagnostics.evaluation_report`), the report on a network
(`giaann_dask.diagnostics.network_report`) and what a cluster does (Dask's own dashboard).
"""
