"""Text to tagged, segmented sequences; no cluster."""
