"""Watching a network that is trained or used: a page of Dask's dashboard and metrics, from events."""
