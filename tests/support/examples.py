"""Scale the number of examples of property tests with the profile of Hypothesis."""

from __future__ import annotations

from hypothesis import settings

# Of the profile of the ordinary tests, and of the one of `make test-all`.
QUICK, THOROUGH = 40, 200


def examples(count: int) -> settings:
    """Return settings with so many examples in the ordinary tests, and more under a profile that has more."""
    return settings(max_examples=count * settings.default.max_examples // QUICK, deadline=None)
