"""Find and escape characters that a terminal, a page, an XML document or UTF-8 would obey, hide or refuse.

Words, names of files and messages of commits come from text that nobody has checked: control sequences in them could
clear a screen, reorder a line or end a document. What is for people is escaped by `printable` and `xml_text`; what is
for programs stays as it is, and `json_text` writes it in JSON's own escapes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

# Invisible, but spelling needs them: joiners of Persian, Indic scripts and emoji, and the soft hyphen.
_SPELLED = "\u200c\u200d\u00ad"
# What XML 1.0 has no character for.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What text in UTF-8 does not hold.
_INVALID = re.compile("[\0\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    r"""Return text with escapes in place of control characters, controls of direction, lone surrogates and the like.

    Parameters
    ----------
    text : str
        For a person to read.
    keep : str
        Characters that stay as they are, such as a newline.

    Examples
    --------
    >>> print(printable("a\x1b[2Jb\u202ec"))
    a\x1b[2Jb\u202ec
    >>> printable("naïve 東京")
    'naïve 東京'
    """
    return _replaced(text, keep, lambda each: each.encode("unicode_escape").decode("ascii"))


def json_text(values: Any, default: Callable[[Any], Any] | None = None) -> str:
    r"""Return JSON on one line, with escapes in place of the same characters; it is read as the same values.

    Parameters
    ----------
    values : object
        As for `json.dumps`.
    default : callable, optional
        Likewise.

    Examples
    --------
    >>> print(json_text({"name": "é\x9b"}))
    {"name": "é\u009b"}
    """
    return _replaced(json.dumps(values, ensure_ascii=False, default=default), "", lambda each: json.dumps(each)[1:-1])


def xml_text(text: str) -> str:
    r"""Return text with escapes in place of the characters that XML 1.0 does not have.

    Parameters
    ----------
    text : str
        A document, or a part of it.

    Examples
    --------
    >>> print(xml_text("<text>a\x1bb</text>"))
    <text>a\x1bb</text>
    """
    return _NO_XML.sub(lambda found: printable(found[0]), text)


def text_fault(string: str) -> str | None:
    r"""Return the defect of a string that is not valid UTF-8 text, or None for a valid one.

    Parameters
    ----------
    string : str
        May contain NUL characters and halves of surrogate pairs: JSON can escape these, and Python creates them
        from command-line arguments that are not UTF-8.

    Examples
    --------
    >>> text_fault("caf\u00e9"), text_fault("a\0b")
    (None, 'a NUL character at character 1')
    >>> text_fault("a \ud83d")
    'half a surrogate pair at character 2'
    >>> text_fault("caf\udce9")
    'half a surrogate pair, or a byte that is not UTF-8, at character 3'
    """
    found = _INVALID.search(string)
    if found is None:
        return None
    if found[0] == "\0":
        return f"a NUL character at character {found.start()}"
    # Python's "surrogateescape" maps bytes from 0x80 on to these.
    byte = ", or a byte that is not UTF-8," if "\udc80" <= found[0] <= "\udcff" else ""
    return f"half a surrogate pair{byte} at character {found.start()}"


def escaped(string: str) -> str:
    r"""Return a string that can be encoded in UTF-8: replace halves of surrogate pairs by escapes.

    Examples
    --------
    >>> escaped("caf\u00e9 \ud83d")
    'café \\ud83d'
    """
    return string.encode("utf-8", "backslashreplace").decode("utf-8")


def _replaced(text: str, keep: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(each if each in keep or _is_shown(each) else escape(each) for each in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _SPELLED or unicodedata.category(character) == "Zs"
