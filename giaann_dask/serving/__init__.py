"""An HTTP server that continues prompts, in the form that OpenAI's clients know."""
