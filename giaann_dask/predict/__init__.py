"""From rows to activations to predictions."""
