"""Models of words: what those that count words after contexts have in common."""
