"""What the scripts in ``workflows/`` share: settings, locks, histories, exit codes, and the work of each."""
