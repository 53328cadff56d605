"""Draw, report, check and monitor networks and the engine."""
