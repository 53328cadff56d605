"""Arithmetic with networks, which are sums of integers: add networks, subtract documents, compare commits."""
