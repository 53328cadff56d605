"""Report on a network as one HTML page: sizes, growth, distributions, hubs, regions, accuracy and drawings.

Covers: what is counted region by region (`counting`), collecting it here or on a cluster (`gathering`),
charts (`charts`), drawings (`charts`) and the page (`page`). Does not cover: evaluations
(`giaann_dask.inference.evaluation`) and the pictures themselves (`giaann_dask.diagnostics.pictures`).
"""
