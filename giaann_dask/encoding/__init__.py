"""Encode text on a cluster: tag and encode blocks in parallel, with the same result as sequential reading."""
