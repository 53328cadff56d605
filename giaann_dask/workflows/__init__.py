"""Implement the scripts in ``workflows/``: settings, locks, histories, exit codes, and the work of each."""
