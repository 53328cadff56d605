"""Trace connections to the training sequences that built them, by the index of networks trained with ``trace``."""
