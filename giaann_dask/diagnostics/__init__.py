"""Pictures of networks and of what the engine does."""
