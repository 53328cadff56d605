"""Profile contexts: true probabilities from counted contexts, and the n-grams they are compared with."""
