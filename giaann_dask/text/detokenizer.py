"""Detokenize generated tokens incrementally: put spaces between words, join the bytes of subwords.

Merged nouns are written with spaces, by their names (`noun_names`). Subwords contain their own spaces and may end
within a UTF-8 character.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from giaann_dask.text.noun_names import noun_text

# Name of a subword whose bytes are not valid UTF-8 (see `giaann_dask.text.tokenizer`).
_NAMED_BYTES = re.compile(r"<byte:((?:[0-9a-f]{2})+)>")


class Detokenizer:
    """Incremental detokenizer.

    Parameters
    ----------
    subwords : bool
        Whether tokens are subwords; a space is added before words only.
    spaced : bool
        Whether the preceding text already ends with a space, so that the first word gets none.

    Examples
    --------
    >>> writer = Detokenizer(True)
    >>> [writer.write(token) for token in (" ca", "f", "<byte:c3>", "<byte:a9>", " bar")]
    [' ca', 'f', '', 'é', ' bar']
    >>> Detokenizer(False).write("old_mill", "old_mill"), Detokenizer(False).write("snake_case")
    (' old mill', ' snake_case')
    """

    def __init__(self, subwords: bool, *, spaced: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if subwords else None
        self._space = "" if spaced else " "

    def write(self, token: str, column: str = "") -> str:
        """Return the text that a token adds, without the bytes of an incomplete character.

        Parameters
        ----------
        token : str
            Its word.
        column : str
            Concept of its column, which has the name of the word where that is a noun.
        """
        if self._decoder is None:
            space, self._space = self._space, " "
            return space + word_text(token, column)
        named = _NAMED_BYTES.fullmatch(token)
        return self._decoder.decode(bytes.fromhex(named[1]) if named else token.encode("utf-8"))

    def end(self) -> str:
        """Return the replacement character for an incomplete last character, or an empty string."""
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)


def word_text(word: str, column: str) -> str:
    """Return a word as text has it; it is the name of a noun where it is that of its column.

    Examples
    --------
    >>> word_text("big_dog", "big_dog"), word_text("snake_case", "big_dog"), word_text("snake_case", "")
    ('big dog', 'snake_case', 'snake_case')
    """
    return noun_text(word) if word == column else word


def detokenize(tokens: Iterable[tuple[str, str]], subwords: bool) -> str:
    """Return the text of tokens, each a word and its column, without a space before the first word.

    Examples
    --------
    >>> detokenize([("a", "big_dog"), ("big_dog", "big_dog")], False), detokenize([(" a", ""), ("b", "")], True)
    ('a big dog', ' ab')
    """
    writer = Detokenizer(subwords, spaced=True)
    return "".join(writer.write(*token) for token in tokens) + writer.end()
