"""Simulate trainings on more workers than there are, by discrete events."""
