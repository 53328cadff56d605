"""Scale the number of examples of tests with the profile of Hypothesis."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

from hypothesis import settings

# Of the profile of the ordinary tests, and of the one of `make test-all`.
QUICK, THOROUGH = 20, 200
# Of the profile for which tests say their numbers of examples.
_SAID = 40

Case = tuple[Hashable, ...]


def examples(count: int) -> settings:
    """Return settings with half as many examples in the ordinary tests, and more under a profile that has more."""
    return settings(max_examples=scaled(count), deadline=None)


def scaled(count: int) -> int:
    """Return half a number of cases in the ordinary tests, and more under a profile that has more examples."""
    return max(1, count * settings.default.max_examples // _SAID)


def covering_pairs(cases: Sequence[Case]) -> list[Case]:
    """Return cases in which every two values of two places meet that meet in any case; all under a larger profile.

    Examples
    --------
    >>> covering_pairs([(a, b, c) for a in "xy" for b in "xy" for c in "xy"])
    [('x', 'x', 'x'), ('x', 'y', 'y'), ('y', 'x', 'y'), ('y', 'y', 'x')]
    """
    if settings.default.max_examples > QUICK:
        return list(cases)
    pairs = {case: {*combinations(enumerate(case), 2)} for case in cases}
    left, found = set[object]().union(*pairs.values()), []
    while left:
        found.append(max(cases, key=lambda case: len(left & pairs[case])))
        left -= pairs[found[-1]]
    return found
