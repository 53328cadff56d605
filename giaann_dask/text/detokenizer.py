"""How generated tokens are written down one after the other.

Covers: spaces between words, which merged nouns have too, and subwords, which hold their own spaces and
may end inside a character. Does not cover: what is generated (`giaann_dask.inference`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

# How a subword that is no text by itself is named (`giaann_dask.text.tokenizer`).
_NAMED_BYTES = re.compile(r"<byte:((?:[0-9a-f]{2})+)>")


class Detokenizer:
    """Turns tokens into text as they come.

    Parameters
    ----------
    subwords : bool
        Whether tokens are subwords; a space is written before words only.
    spaced : bool
        Whether the first word follows a space that is there already.

    Examples
    --------
    >>> writer = Detokenizer(True)
    >>> [writer.write(token) for token in (" ca", "f", "<byte:c3>", "<byte:a9>", " bar")]
    [' ca', 'f', '', 'é', ' bar']
    >>> Detokenizer(False).write("old_mill")
    ' old mill'
    """

    def __init__(self, subwords: bool, *, spaced: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if subwords else None
        self._space = "" if spaced else " "

    def write(self, token: str) -> str:
        """Return the text that a token adds, as far as its characters are whole."""
        if self._decoder is None:
            space, self._space = self._space, " "
            return space + token.replace("_", " ")
        named = _NAMED_BYTES.fullmatch(token)
        return self._decoder.decode(bytes.fromhex(named[1]) if named else token.encode("utf-8"))

    def end(self) -> str:
        """Return what stands for a character that remained unfinished."""
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)


def detokenize(tokens: Iterable[str], subwords: bool) -> str:
    """Return the text of some tokens; words begin without a space.

    Examples
    --------
    >>> written(["a", "big_dog"], False), written([" a", "b"], True)
    ('a big dog', ' ab')
    """
    writer = Detokenizer(subwords, spaced=True)
    return "".join(writer.write(token) for token in tokens) + writer.end()
