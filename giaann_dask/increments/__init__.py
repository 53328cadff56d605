"""Compute the increments of a batch of sequences: pairs, contexts and scaling; no cluster."""
