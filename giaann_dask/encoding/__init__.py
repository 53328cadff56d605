"""Text to encoded blocks on a cluster: parallel over blocks, with the results of sequential reading."""
