"""giaann_dask: a columnar language model that learns by counting, spread over a Dask cluster."""
