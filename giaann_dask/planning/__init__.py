"""Estimate what a training costs on given hardware, and choose a configuration for it."""
