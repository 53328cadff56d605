"""Detokenize generated tokens incrementally: write words as text has them, join the bytes of subwords.

Networks know words in lower case. They are written with the spaces and the capital letters of English text: a sentence
begins with a capital letter, and *I* is one. Other names stay in lower case, as networks do not know theirs. Merged
nouns are written with spaces, by their names (`blocks`). Subwords contain their own spaces and capital letters and
may end within a UTF-8 character.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import NamedTuple, Self

from giaann_dask.text.blocks import noun_text
from giaann_dask.text.scripts import is_unspaced

FINAL = frozenset([".", "!", "?", "。", "！", "？", "؟", "۔", "।"])
CLOSING = frozenset(["”", "»", ")", "]", "}", "''", *"」』）］｝】》〉〕"])
CONTINUING = frozenset([",", ";", ":", *"，、；：،؛"])
"""Tokens that end a sentence, that close something, and that continue a sentence."""

_OPENING = frozenset(["“", "‘", "«", "„", "‚", "(", "[", "{", "``", "`", "¿", "¡", *"「『（［｛【《〈〔"])
_QUOTES = frozenset(['"', "'", "“", "”", "‘", "’", "''", "``"])
# Characters of tokens that attach to the word before: "?!", "...", "%".
_ENDING_CHARACTERS = frozenset(".,;:!?…%。，、；：！？؟،؛۔।")
# Second parts of contractions, as the tokenizer divides them; the others only after the words named.
_CLITICS = frozenset(
    [mark + part for mark in "'’" for part in ("s", "m", "d", "ll", "re", "ve")] + ["n't", "n’t", "nt", "ll", "ve"]
)
_CONTRACTED = frozenset(
    [("gon", "na"), ("got", "ta"), ("i", "m"), ("y'", "all"), ("y’", "all"), ("c'm", "on"), ("c’m", "on")]
)
# These attach to what follows, these to both sides.
_PREFIXES = frozenset("$£€¥#")
_JOINING = frozenset(["-", "‑", "--", "---", "—", "/"])
# Verbs after a quotation that ends with a mark of its own: "Why?" asked he.
_VERBS = "said says asked asks cried cries replied replies returned returns exclaimed exclaims answered answers"
_SPEAKING = frozenset(_VERBS.split())

# Name of a subword whose bytes are not valid UTF-8 (see `giaann_dask.text.tokenizer`).
_NAMED_BYTES = re.compile(r"<byte:((?:[0-9a-f]{2})+)>")
# Stands for an underscore that begins a sentence, such as one in italics.
_FIRST = "‗"
# As the last word, an underscore that opened.
_OPENED = "__"
# A mark that closes what one of the others opened; straight ones open and close.
_PAIRED = {'"': '"', "_": "_" + _FIRST, "'": "'", "’": "‘"}


class Detokenizer:
    """Incremental detokenizer.

    Parameters
    ----------
    subwords : bool
        Whether tokens are subwords, which are written as they are.
    after : iterable of str
        Words of the preceding text, which say whether a sentence or a quotation is open.
    spaced : bool
        Whether the preceding text ends with a space, so that the first word gets none.

    Examples
    --------
    >>> writer = Detokenizer(True)
    >>> [writer.write(token) for token in (" ca", "f", "<byte:c3>", "<byte:a9>", " bar")]
    [' ca', 'f', '', 'é', ' bar']
    >>> writer = Detokenizer(False, after=["the", "mill"])
    >>> [writer.write(token) for token in ("stood", ".", '"', "i", "do", "n't", "!", '"')]
    [' stood', '.', ' "', 'I', ' do', "n't", '!', '"']
    >>> Detokenizer(False, after=["a"]).write("old_mill", "old_mill"), Detokenizer(False, after=["a"]).write("_x_y")
    (' old mill', ' _x_y')
    """

    def __init__(self, subwords: bool, *, after: Iterable[str] = (), spaced: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if subwords else None
        self._text = _TextState()
        if not subwords:
            for word in after:
                self._text = self._text.add(word, word)[0]
        if spaced:
            self._text = self._text._replace(joined=True)

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
            self._text, written = self._text.add(token, word_text(token, column))
            return written
        named = _NAMED_BYTES.fullmatch(token)
        return self._decoder.decode(bytes.fromhex(named[1]) if named else token.encode("utf-8"))

    def preview(self, token: str, column: str = "") -> str:
        """Return the text that a token would add; a subword as it is named."""
        return token if self._decoder is not None else self._text.add(token, word_text(token, column))[1]

    def end(self) -> str:
        """Return the replacement character for an incomplete last character, or an empty string."""
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)


class _TextState(NamedTuple):
    """State of the text so far, as far as the next word depends on it.

    Attributes
    ----------
    joined : bool
        Whether the next word has no space before it.
    begins : bool
        Whether the next word begins a sentence.
    opened : str
        Quotation marks and underscores that are open.
    last : str
        The last word, in lower case.
    """

    joined: bool = False
    begins: bool = True
    opened: str = ""
    last: str = ""

    def add(self, word: str, text: str) -> tuple[Self, str]:
        """Return the state after a word, and its text with the space and the capital letter that it gets here."""
        name = word.lower()
        attached, joining, opened = self._marks(name)
        plain = any(map(str.isalnum, word)) and not attached
        if plain and self.begins:
            # Those of names such as _next, which nothing closes.
            opened = opened.replace("_", "")
        kept = self.opened.endswith(("__", 2 * _FIRST)) or (name in _SPEAKING and self.last in _QUOTES)
        if (plain and self.begins and not kept) or name == "i" or name[:2] in ("i'", "i’"):
            text = _capital(text)
        begins = self.begins and not plain and word not in CONTINUING and word not in _CLITICS
        quoted = self.last == ":" and joining and word in ("“", '"')
        unspaced = is_unspaced(self.last[-1:]) or is_unspaced(text[:1])
        space = "" if attached or self.joined or unspaced else " "
        state = self._replace(joined=joining, begins=begins or quoted or word in FINAL, opened=opened)
        return state._replace(last=_OPENED if name == "_" and joining else name), space + text

    def _marks(self, word: str) -> tuple[bool, bool, str]:
        """Return whether a word attaches to the one before and to the one after, and the marks that are open then."""
        if word in _PAIRED:
            return self._paired(word)
        if word in _JOINING:
            # At the beginning a hyphen is a bullet.
            inside = self.last != "" and not self.begins
            return inside or word != "-", inside or word != "-", self.opened
        if word == "–" and self.last.isdigit():
            return True, True, self.opened
        opened = self.opened + word if word == "‘" and word not in self.opened else self.opened
        attached = word in CLOSING or word in _CLITICS or (self.last, word) in _CONTRACTED
        return attached or _ENDING_CHARACTERS.issuperset(word), word in _OPENING or word in _PREFIXES, opened

    def _paired(self, mark: str) -> tuple[bool, bool, str]:
        if mark == "_" and self.last == _OPENED and self.opened.endswith(("_", _FIRST)):
            # As before __init__.
            return True, True, self.opened + self.opened[-1]
        for opening in _PAIRED[mark]:
            if opening in self.opened:
                return True, False, self.opened.replace(opening, "", 1)
        if mark in "'’" and self.last.endswith("s"):
            # Of a plural, as in the millers' house.
            return True, False, self.opened
        # An apostrophe may begin a word, and then nothing closes it.
        if mark == "’":
            return False, True, self.opened
        return False, True, self.opened + (_FIRST if mark == "_" and self.begins else mark)


def word_text(word: str, column: str) -> str:
    """Return a word as text has it; it is the name of a noun where it is that of its column.

    Examples
    --------
    >>> word_text("big_dog", "big_dog"), word_text("snake_case", "big_dog"), word_text("snake_case", "")
    ('big dog', 'snake_case', 'snake_case')
    """
    return noun_text(word) if word == column else word


def detokenize(tokens: Iterable[tuple[str, str]], subwords: bool, *, after: Iterable[str] = ()) -> str:
    """Return the text of tokens, each a word and its column, without a space before the first word.

    Examples
    --------
    >>> detokenize([("a", "big_dog"), ("big_dog", "big_dog")], False), detokenize([(" a", ""), ("b", "")], True)
    ('A big dog', ' ab')
    >>> detokenize([("dog", "dog"), (".", "dog"), ("he", "dog")], False, after=["a"])
    'dog. He'
    """
    writer = Detokenizer(subwords, after=after, spaced=True)
    return "".join(writer.write(*token) for token in tokens) + writer.end()


def _capital(text: str) -> str:
    """Return text with a capital first letter, unchanged where its first character has none of one character."""
    first = text[:1].title()
    return first + text[1:] if len(first) == 1 else text
