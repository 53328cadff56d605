"""Report on a network as one HTML page: sizes, growth, distributions, hubs, regions, accuracy and drawings."""
