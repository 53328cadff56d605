"""Monitor training and inference: a page of Dask's dashboard and Prometheus metrics, from events."""
