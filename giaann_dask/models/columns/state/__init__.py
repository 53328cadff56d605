"""Hold the activation, candidates and steps of a sequence: values that all profiles share."""
