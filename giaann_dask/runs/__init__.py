"""Merge, split, pack, count and place sorted integer tables of connections; pure functions, no storage."""
