"""Profile v2: leaky integrate-and-fire and what belongs to it."""
