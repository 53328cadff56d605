"""Convert input text to tagged, segmented sequences; no cluster."""
