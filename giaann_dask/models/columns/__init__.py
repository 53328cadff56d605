"""Models of concept columns: profiles v1 and v2."""
