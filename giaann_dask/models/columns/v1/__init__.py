"""Many prompts a step at a time, in compiled code that replays only the neurons that can win."""
