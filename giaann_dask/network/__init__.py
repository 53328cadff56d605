"""Connections, runs, regions and the store; no cluster."""
