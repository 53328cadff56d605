"""Represent objects as text on a console and as HTML in a notebook, and escape what a display would obey.

Has a titled list of labels and values that renders as aligned text and as a small table with the same content, the
mixin that represents an object by its ``summary`` method, and the format of counts, numbers, sizes and shares.

Words, names of files and messages of commits come from text that nobody has checked: control sequences in them could
clear a screen, reorder a line or end a document. What is for people is escaped by `printable` and `xml_text`; what is
for programs stays as it is, and `json_text` writes it in JSON's own escapes.
"""

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
# From here on digits say less than an exponent.
_LARGE = 1e9

# Grey with opacity and inherited colours look right on light and on dark pages.
_FRAME = (
    "display:inline-block;margin:4px 0;padding:8px 14px;border:1px solid rgba(128,128,128,.4);"
    "border-radius:6px;background:rgba(128,128,128,.07);color:inherit;font-size:90%"
)
_TITLE = "font-weight:600;margin-bottom:4px"
_TABLE = "border-collapse:collapse;border:none;margin:0;background:transparent;color:inherit"
_ROW = "border:none;background:transparent"
_LABEL = "border:none;padding:1px 20px 1px 0;text-align:left;font-weight:normal;vertical-align:top;opacity:.7"
_VALUE = "border:none;padding:1px 0;text-align:left;white-space:pre-wrap;font-variant-numeric:tabular-nums"
_BAR = (
    "display:inline-block;width:160px;height:9px;margin-right:8px;border-radius:4px;"
    "background:rgba(128,128,128,.3);overflow:hidden;vertical-align:middle"
)
_FILL = "display:block;height:100%;background:#3b82c4"
# As wide for every share, so that bars below each other begin at one place.
_SHARE = "display:inline-block;min-width:4.5em;text-align:right"


@dataclass(frozen=True)
class Summary:
    """A title and labelled values, the one source of an object's text and HTML.

    Parameters
    ----------
    title : str
        What the object is.
    rows : sequence of (str, str)
        Labels and values, in order. A value may have several lines.

    Examples
    --------
    >>> print(Summary("Network a", [("concepts", "12"), ("on disk", "3.0 MiB")]).text())
    Network a
      concepts  12
      on disk   3.0 MiB
    """

    title: str
    rows: Sequence[tuple[str, str]]

    def text(self) -> str:
        """Return the title and one line per row, values aligned; no newline at the end."""
        rows = [(printable(label), value) for label, value in self.rows]
        width = max((len(label) for label, _ in rows), default=0)
        lines = [printable(self.title)]
        for label, value in rows:
            first, *rest = map(printable, value.split("\n"))
            lines.append(f"  {label:<{width}}  {first}".rstrip())
            lines.extend(f"{'':<{width + 4}}{line}".rstrip() for line in rest)
        return "\n".join(lines)

    def html(self) -> str:
        """Return the same title, labels and values as a table that needs no style sheet."""
        rows = "".join(
            f'<tr style="{_ROW}"><th scope="row" style="{_LABEL}">{_escaped(label)}</th>'
            f'<td style="{_VALUE}">{_escaped(value)}</td></tr>'
            for label, value in self.rows
        )
        table = f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'
        return f'<div style="{_FRAME}"><div style="{_TITLE}">{_escaped(self.title)}</div>{table}</div>'


class Summarised:
    """Mixin that represents an object by its summary on a console and in a notebook.

    A dataclass that uses it is declared with ``repr=False``.

    Examples
    --------
    >>> class Village(Summarised):
    ...     def summary(self):
    ...         return Summary("Village", [("houses", "42")])
    >>> Village()
    Village
      houses  42
    """

    @abstractmethod
    def summary(self) -> Summary:
        """Return the lines that represent the object."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the summary as text."""
        return self.summary().text()

    def _repr_html_(self) -> str:
        """Return the summary as HTML, for notebooks."""
        return self.summary().html()


def _escaped(text: str) -> str:
    return html.escape(printable(text, keep="\n"))


def format_seconds(work: float, whole: float | None = None) -> str:
    """Return the `seconds` of a report for a person, with what they leave out.

    Parameters
    ----------
    work : float
        From reading the text to the result.
    whole : float, optional
        Seconds that a command took, the start of its workers included.

    Examples
    --------
    >>> format_seconds(4.638), format_seconds(4.638, 7.121)
    ('4.64 without the start of workers', '4.64 without the start of workers, 7.12 in all')
    """
    in_all = "" if whole is None else f", {whole:.2f} in all"
    return f"{work:.2f} without the start of workers{in_all}"


def format_bytes(n: int) -> str:
    """Return a size in binary units with one decimal.

    Examples
    --------
    >>> format_bytes(1000), format_bytes(1536), format_bytes(5 * 2**30)
    ('1,000 B', '1.5 KiB', '5.0 GiB')
    """
    if abs(n) < 1024:
        return f"{n:,} B"
    size, unit = n / 1024, 0
    # 1,023.95 and more would be written as 1,024.0.
    while abs(size) >= 1023.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.1f} {_UNITS[unit]}"


def format_float(x: float) -> str:
    """Return a number with one decimal, with an exponent where it is large.

    Examples
    --------
    >>> format_float(1234.56), format_float(1.5e26), format_float(math.inf)
    ('1,234.6', '1.5e+26', 'infinite')
    """
    if math.isinf(x):
        return "infinite"
    return f"{x:,.1f}" if x < _LARGE else f"{x:.4g}"


def finite(x: float) -> float | None:
    """Return a number as JSON can hold it: None where it is infinite or not a number."""
    return x if math.isfinite(x) else None


def bar(value: float) -> str:
    """Return a share as an HTML bar followed by the percentage.

    Parameters
    ----------
    value : float
        From 0 to 1, for example an accuracy; not a number when there is none.

    Returns
    -------
    str
        HTML without a style sheet. Without a value the bar is empty and its text is "none".

    Raises
    ------
    ValueError
        If the value is below 0 or above 1.
    """
    if math.isnan(value):
        share, text = 0.0, "none"
    elif 0 <= value <= 1:
        share, text = 100 * value, f"{100 * value:.1f} %"
    else:
        raise ValueError(f"a share of {value}; expected 0 to 1")
    fill = f'<span style="{_FILL};width:{share:.2f}%"></span>'
    return f'<span><span style="{_BAR}">{fill}</span><span style="{_SHARE}">{text}</span></span>'


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
