"""Find stop sequences in streamed text, and withhold text that may be the beginning of one.

Does not cover: tokens (`giaann_dask.serving.completion_deltas`).
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes text on until a stop sequence begins.

    Parameters
    ----------
    stops : sequence of str
        None of them empty.

    Attributes
    ----------
    found : bool
        Whether a stop sequence has come; nothing is passed on from then on.

    Examples
    --------
    >>> finder = StopFinder(["the end"])
    >>> finder.feed("to the"), finder.feed(" hill and the"), finder.feed(" end."), finder.found
    ('to ', 'the hill and ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Take a piece of text and return what is known to come before every stop sequence."""
        if self.found:
            return ""
        whole = self._held + text
        # The one that is complete first, so that it does not matter how the text is divided.
        places = [(place + len(stop), place) for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return whole[: min(places)[1]]
        keep = max((_beginning(whole, stop) for stop in self._stops), default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def end(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Return the length of the longest proper beginning of a stop sequence that a text ends with."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
