"""Tell scripts of text, and divide text in scripts that have no spaces between words into characters.

Does not cover: languages (`languages`).
"""

from __future__ import annotations

import re

# Code points of scripts and their marks. Those of Chinese and Japanese share their characters.
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_WIDE_MARKS = "\u3000-\u3004\u3008-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_THAI, _LAO, _BURMESE, _KHMER = "\u0e00-\u0e7f", "\u0e80-\u0eff", "\u1000-\u109f", "\u1780-\u17ff"
_UNSPACED = _HAN + _KANA + _WIDE_MARKS + _THAI + _LAO + _BURMESE + _KHMER
# Vowels and accents that belong to the character before.
_COMBINED = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u17dd"
    "\u3099\u309a\uff9e\uff9f\ufe00-\ufe0f\U000e0100-\U000e01ef\u0300-\u036f"
)
_PIECES = re.compile(rf"[{_UNSPACED}][{_COMBINED}]*|[^{_UNSPACED}]+")
_FOUND = re.compile(f"[{_UNSPACED}]")
# Letters of each script, by the language that it names where it is the only one.
_SCRIPTS = {
    "Japanese": _KANA,
    "Chinese": _HAN,
    "Korean": "\uac00-\ud7af\u1100-\u11ff",
    "Thai": _THAI,
    "Lao": _LAO,
    "Burmese": _BURMESE,
    "Khmer": _KHMER,
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f",
    "Cyrillic": "\u0400-\u052f",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Georgian": "\u10a0-\u10ff",
    "Armenian": "\u0530-\u058f",
    "Ethiopic": "\u1200-\u137f",
}
UNSPACED_SCRIPTS = frozenset(["Japanese", "Chinese", "Thai", "Lao", "Burmese", "Khmer"])
"""Scripts without spaces between words, as `script_of` names them."""
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters in _SCRIPTS.items()}
_LETTER = re.compile(r"[^\W\d_]")
# Shares of letters: of a script that is not the Latin one, and of kana in Japanese.
_MOST, _LEAST_KANA = 0.5, 0.05


def divide_unspaced(token: str) -> list[str]:
    """Return a token divided into characters where its script has no spaces, with the marks that belong to each.

    Examples
    --------
    >>> divide_unspaced("東京Tower"), divide_unspaced("mill")
    (['東', '京', 'Tower'], ['mill'])
    """
    return _PIECES.findall(token) if _FOUND.search(token) else [token]


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script without spaces between words; none is not."""
    return _FOUND.match(character) is not None


def script_of(text: str) -> str:
    """Return the script, other than the Latin one, that most letters of a text are in; empty where none is.

    Examples
    --------
    >>> script_of("猫は寝た。"), script_of("Мельник поёт."), script_of("The miller (мельник) sings.")
    ('Japanese', 'Cyrillic', '')
    """
    letters = len(_LETTER.findall(text))
    if text.isascii() or not letters:
        return ""
    shares = {name: len(pattern.findall(text)) / letters for name, pattern in _LETTERS.items()}
    if shares["Chinese"] + shares["Japanese"] > _MOST:
        return "Japanese" if shares["Japanese"] > _LEAST_KANA else "Chinese"
    name = max(shares, key=lambda each: shares[each])
    return name if shares[name] > _MOST else ""
