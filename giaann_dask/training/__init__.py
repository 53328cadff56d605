"""Training as a pure Dask graph: connect, route, integrate, compact, commit."""
