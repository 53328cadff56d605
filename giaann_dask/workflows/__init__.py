"""Implement the commands ``giaann-dask job``: locks, histories, exit codes, and the work of each job."""
