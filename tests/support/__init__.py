"""Networks, texts, golden files and fault plans that several tests use."""
