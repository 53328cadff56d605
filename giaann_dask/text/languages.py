"""Judge from samples whether text is English, as the default tagger needs, and name another language.

A word is known if the lexicon of the tagger has it. Where many are not, the language is the one whose stop words (lists
of the package spaCy, read as files: importing spaCy takes seconds) are most frequent. Text that is English in part, as
novels with French, lists of names and code are, is tagged; a warning says how many words are known.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from giaann_dask.errors import LanguageError
from giaann_dask.text.lexicon.words import dictionary_lines, frequent_tags
from giaann_dask.text.reading import parse_conllu
from giaann_dask.text.scripts import UNSPACED_SCRIPTS, script_of
from giaann_dask.text.tokens import Part

_LOG = logging.getLogger(__name__)
_NAMES = {
    "af": "Afrikaans", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fi": "Finnish", "fr": "French", "ga": "Irish", "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "la": "Latin", "lt": "Lithuanian", "lv": "Latvian",
    "nb": "Norwegian", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "sk": "Slovak",
    "sl": "Slovenian", "sq": "Albanian", "sv": "Swedish", "tl": "Tagalog", "tr": "Turkish", "vi": "Vietnamese",
    "ar": "Arabic", "bg": "Bulgarian", "el": "Greek", "fa": "Persian", "he": "Hebrew", "hi": "Hindi", "ko": "Korean",
    "mk": "Macedonian", "mr": "Marathi", "ru": "Russian", "sr": "Serbian", "uk": "Ukrainian", "ur": "Urdu",
}  # fmt: skip
# Languages for which spaCy's authors have a small pipeline CODE_core_news_sm.
_PIPELINES = frozenset(_NAMES) & {
    *("ca", "da", "de", "el", "es", "fi", "fr", "hr", "it", "ko", "lt", "mk", "nb", "nl", "pl", "pt", "ro", "ru", "sl"),
    *("sv", "uk"),
}
_ENGLISH = "en"
# Numerals and initials are no evidence of a language.
_WORD = re.compile(r"[^\W\d_]{2,}")
_SAMPLES, _SAMPLE_CHARACTERS = 24, 400
# Characters that are judged together, and the fewest words that are judged.
_WINDOW_CHARACTERS, _LEAST_WORDS = 2_500, 40
# Shares of words: known ones, below which another language is looked for and a warning is given; stop words of another
# language, and how many times as many they are as those of English.
_SUSPECT, _STOP_WORDS, _TIMES = 0.6, 0.2, 1.5
# Different stop words that a language is known by, at least.
_DIFFERENT = 5
# Parts after which only one of this number is looked at, so that short records cost nothing.
_PARTS = 64


class Judgement(NamedTuple):
    """Language of a sample of text.

    Attributes
    ----------
    words : int
        Words of the sample.
    known : float
        Share of them that the lexicon of the default tagger has.
    language : str
        Name of another language, or of its script; empty for English, and where none is told.
    code : str
        Code of the language, as spaCy names it; empty where it has none.
    """

    words: int
    known: float
    language: str = ""
    code: str = ""


def judge(text: str) -> Judgement:
    """Return what language a text is in.

    Examples
    --------
    >>> judge("Der alte Müller trug das Mehl durch die Stadt, und das Kind ging mit der Frau.").language
    'German'
    >>> judge("The old miller carried the flour to the baker.").language
    ''
    """
    words = [word.lower() for word in _WORD.findall(text)]
    dictionary, frequent = dictionary_lines(), frequent_tags()
    known = sum(word in dictionary or word in frequent for word in words) / max(len(words), 1)
    script = script_of(text)
    if not words or (known >= _SUSPECT and not script):
        return Judgement(len(words), known)
    if script in UNSPACED_SCRIPTS:
        # Their words are not divided, so characters are counted.
        return Judgement(sum(map(len, words)), known, script)
    stops = _stop_words()
    shares = {code: sum(word in stops[code] for word in words) / len(words) for code in stops}
    english = shares.pop(_ENGLISH, 0.0)
    best = max(shares, key=lambda code: shares[code])
    if shares[best] >= max(_STOP_WORDS, _TIMES * english) and len(stops[best].intersection(words)) >= _DIFFERENT:
        return Judgement(len(words), known, _NAMES[best], best)
    return Judgement(len(words), known, script)


@functools.cache
def _stop_words() -> dict[str, frozenset[str]]:
    """Return the stop words of each language by its code, from the files of spaCy."""
    spec = importlib.util.find_spec("spacy")
    folder = Path(spec.origin).parent / "lang" if spec is not None and spec.origin else Path()
    found = {}
    for code in (_ENGLISH, *_NAMES):
        file = folder / code / "stop_words.py"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        strings = [
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found[code] = frozenset(" ".join(strings).lower().split())
    return found


def require_english(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts of text; raise an error if the first ones are not English, and warn of later ones that are not.

    The first parts are held until they have some hundred words.

    Raises
    ------
    LanguageError
        If the first parts are in another language.
    """
    held: list[Part] | None = []
    sampled: list[str] = []
    size, number, warned = 0, -1, False
    remaining = iter(parts)
    while True:
        try:
            part = next(remaining, None)
        except BaseException:
            # What was read before an error or a signal is trained.
            yield from held or ()
            raise
        if part is None:
            break
        number += 1
        if number < _PARTS or number % _PARTS == 0:
            sampled.append(_sample(part))
            size += len(sampled[-1])
        if held is not None:
            held.append(part)
        if size >= _WINDOW_CHARACTERS:
            found = judge(" ".join(sampled))
            if held is not None:
                _require(found, part.source)
            elif found.language and not warned:
                warned = True
                _LOG.warning("%s", _refusal(found, part.source).received)
            sampled, size = [], 0
            yield from [part] if held is None else held
            held = None
        elif held is None:
            yield part
    if held:
        _require(judge(" ".join(sampled)), held[0].source)
        yield from held


def _sample(part: Part) -> str:
    """Return pieces of a part from its beginning to its end."""
    if part.kind == "conllu":
        texts = [" ".join(each.forms) for passage in part.passages for each in parse_conllu(passage)]
    elif len(part.passages) == 1:
        (text,) = part.passages
        step = max(_SAMPLE_CHARACTERS, len(text) // _SAMPLES)
        texts = [text[at : at + step] for at in range(0, len(text), step)]
    else:
        texts = list(part.passages)
    return " ".join(text[:_SAMPLE_CHARACTERS] for text in texts[:: max(1, len(texts) // _SAMPLES)])


def _require(found: Judgement, place: str) -> None:
    """Raise an error if text is in another language; warn if much of it is not known."""
    if found.words < _LEAST_WORDS:
        return
    if found.language:
        raise _refusal(found, place)
    if found.known < _SUSPECT:
        _LOG.warning("the lexicon, which is English, knows %.0f %% of the words of %r", 100 * found.known, place)


def _refusal(found: Judgement, place: str) -> LanguageError:
    """Return the error for text in another language, with what helps there."""
    reads = "characters" if found.language in UNSPACED_SCRIPTS else "words without tags"
    pipeline = f"set tagger to spacy:{found.code}_core_news_sm, " if found.code in _PIPELINES else ""
    return LanguageError(
        f"{place!r} looks like {found.language}: the lexicon, which is English, knows {found.known:.0%} of its words",
        "English",
        f"{pipeline}give CoNLL-U and set tagger to gold, train with profile contexts, which reads {reads}, or set "
        "language to any",
        ("tagger", "profile", "language"),
    )
