"""Tag parts of speech with word lists and hand-written rules; imports nothing of the other modules of this project."""

from __future__ import annotations

from typing import NamedTuple


class TaggedWord(NamedTuple):
    """A token with its lemma, universal part of speech and Penn tag."""

    form: str
    lemma: str
    upos: str
    xpos: str
