"""Estimate what a training costs before it is run: whether it fits, memory, time, and what limits the rate."""
