"""Training as a pure Dask graph: count, route, integrate, compact, commit."""
