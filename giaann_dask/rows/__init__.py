"""Rows: where the outgoing connections of neurons come from, here or on the workers that hold them."""
