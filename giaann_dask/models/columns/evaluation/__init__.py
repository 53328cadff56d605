"""Accuracy: predictions over a cluster, compared and counted."""
