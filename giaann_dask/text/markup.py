"""Read Markdown and reStructuredText without their markup, by markdown-it-py and docutils.

A file is read in pieces of whole paragraphs, so that its size does not matter; what is defined in one piece, such as
the address of a link, is not known in others. Texts of code and of alternatives to images are kept; comments, metadata
at the beginning, and what only lists other files or modules are not.

Does not cover: dividing paragraphs into parts (`reading`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any

from giaann_dask.lazy import import_optional, require_optional
from giaann_dask.text.formats import Format

MARKED_FORMATS: tuple[Format, ...] = ("markdown", "rst")
# Characters of a piece, after which it ends with a paragraph that begins at the margin.
_PIECE_CHARACTERS = 500_000
_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_METADATA = re.compile(r"(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]:?")
_BREAKS = ("softbreak", "hardbreak")
_UNSEEN = ("script", "style", "head")


def unmarked_blocks(lines: Iterable[str], form: str) -> Iterator[str]:
    """Yield the texts of the blocks of a document without their markup: of paragraphs, titles, items, rows and code.

    Parameters
    ----------
    lines : iterable of str
        Lines of the document, without their ends.
    form : {"markdown", "rst"}
        How it is marked up.

    Raises
    ------
    MissingDependencyError
        If docutils is not installed, which reads reStructuredText.

    Examples
    --------
    >>> list(unmarked_blocks(["# The *mill*", "", "A [miller](m.html) sings."], "markdown"))
    ['The mill', 'A miller sings.']
    """
    blocks = _markdown_blocks if form == "markdown" else _rst_blocks
    for number, piece in enumerate(_pieces(lines)):
        metadata = None if number else _METADATA.match(piece)
        yield from blocks(piece[metadata.end() :] if metadata else piece)


def require_markup(form: Format) -> None:
    """Raise a `MissingDependencyError` where what reads a format without its markup is not installed."""
    if form == "rst":
        require_optional("docutils", "rst")


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines joined up to a size; a piece begins at the margin, after a blank line that is not in code."""
    held: list[str] = []
    size, fenced = 0, False
    for line in lines:
        if size > _PIECE_CHARACTERS and not fenced and not held[-1].strip() and line[:1].strip():
            yield "\n".join(held)
            held, size = [], 0
        fenced ^= _FENCE.match(line) is not None
        held.append(line)
        size += len(line) + 1
    yield "\n".join([*held, ""])


def _markdown_blocks(text: str) -> Iterator[str]:
    from markdown_it import MarkdownIt

    row: list[str] | None = None
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "inline":
            found = _FOOTNOTE.sub("", _inline_text(token.children or []))
            if row is None:
                yield found
            else:
                row.append(found)
        elif token.type in ("fence", "code_block"):
            yield token.content
        elif token.type == "html_block":
            yield _element_text(token.content)
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            yield " ".join(row)
            row = None


def _inline_text(tokens: Sequence[Any]) -> str:
    """Return the text of Markdown within a block; elements of HTML are left out."""
    texts = []
    for token in tokens:
        if token.type == "image":
            texts.append(_inline_text(token.children or []))
        elif token.type in _BREAKS:
            texts.append("\n")
        elif token.type != "html_inline":
            texts.append(token.content)
    return "".join(texts)


class _Texts(HTMLParser):
    """Collect the text of HTML that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element, which divides paragraphs of text, and words where it is no part of a line."""
        self._unseen += tag in _UNSEEN
        self.texts.append("\n" if tag in _BLOCKS else "")

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        self._unseen -= tag in _UNSEEN
        self.texts.append("\n" if tag in _BLOCKS else "")

    def handle_data(self, data: str) -> None:
        """Keep text that is shown."""
        if self._unseen <= 0:
            self.texts.append(data)


_BLOCKS = frozenset(
    ["br", "div", "p", "li", "td", "th", "tr", "summary", "details", "table", "ul", "ol", "dl", "dt", "dd"]
    + [f"h{level}" for level in range(1, 7)]
)


def _element_text(html: str) -> str:
    parser = _Texts()
    parser.feed(html)
    parser.close()
    return "".join(parser.texts)


# Directives of Sphinx and others whose content is no text, whose content is code, and whose argument is a name.
_LISTS = re.compile(r"toctree|index|highlight|current\w+|(?:py:)?(?:module|auto\w*)|literalinclude")
_CODE = re.compile(r"code-block|sourcecode|prompt|ipython|test\w+")
_NAMED = re.compile(
    r".*:.*|function|(?:class|static)?method|class|data|attribute|property|exception|option|envvar|decorator"
)
# Version in front of what is said about it.
_VERSION = re.compile(r"v?\d[\d.]*\s*")
_DIRECTIVE = re.compile(r"^[ \t]*\.\. ([\w:+.-]+?)::", re.MULTILINE)
_TARGET = re.compile(r"\s*<[^<>]+>$")


class _AnyOptions(dict[str, Any]):
    """Options of a directive that nothing is known of, which take any value."""

    def __missing__(self, name: str) -> Any:
        return str


def _rst_blocks(text: str) -> Iterator[str]:
    import_optional("docutils", "rst")
    from docutils import core, nodes
    from docutils.parsers.rst import Parser

    _know_directives(text)
    settings = {
        # Files of this machine are not read, and problems not printed.
        "file_insertion_enabled": False, "raw_enabled": False, "_disable_config": True,
        "report_level": 5, "halt_level": 6, "warning_stream": False, "line_length_limit": len(text) + 1,
        "smart_quotes": False,
    }  # fmt: skip
    tree = core.publish_doctree(text, parser=Parser(inliner=_inliner()), settings_overrides=settings)
    unread = (nodes.comment, nodes.raw, nodes.substitution_definition, nodes.target, nodes.label, nodes.pending)
    for node in tree.findall(nodes.TextElement):
        within = node.parent
        while within is not None and not isinstance(within, nodes.TextElement | nodes.system_message):
            within = within.parent
        if within is None and not isinstance(node, unread):
            yield node.astext()


def _inliner() -> Any:
    """Return what reads markup within lines; text of unknown roles, such as those of Sphinx, is kept."""
    from docutils import nodes
    from docutils.parsers.rst import roles, states

    # Classes that are derived from this one fail: docutils looks up patterns in the class of the object alone.
    inliner = states.Inliner()
    known = inliner.interpreted

    def interpreted(rawsource: str, text: str, role: str, lineno: int) -> Any:
        if roles.role(role, inliner.language, lineno, inliner.reporter)[0] is not None:
            return known(rawsource, text, role, lineno)
        shown = _TARGET.sub("", text) or text
        return [nodes.inline(rawsource, shown.lstrip("~!"))], []

    inliner.interpreted = interpreted
    return inliner


def _know_directives(text: str) -> None:
    """Let docutils read the content of directives of a text that it does not know, such as those of Sphinx."""
    from docutils import nodes
    from docutils.frontend import get_default_settings
    from docutils.parsers.rst import Directive, Parser, directives
    from docutils.parsers.rst.languages import en
    from docutils.utils import new_document

    class Contents(Directive):  # type: ignore[misc]
        has_content, optional_arguments, final_argument_whitespace = True, 1, True
        option_spec = _AnyOptions(name=str)

        def run(self) -> Any:
            if _LISTS.fullmatch(self.name):
                return []
            lines = "\n".join(self.content)
            if _CODE.fullmatch(self.name):
                return [nodes.literal_block(lines, lines)]
            found = nodes.container()
            said = _VERSION.sub("", "" if _NAMED.fullmatch(self.name) else " ".join(self.arguments))
            if said:
                texts, _ = self.state.inline_text(said, self.lineno)
                found += nodes.paragraph(said, "", *texts)
            self.state.nested_parse(self.content, self.content_offset, found)
            return [found]

    document = new_document("", get_default_settings(Parser))
    document.reporter.report_level = 5
    for name in {found.lower() for found in _DIRECTIVE.findall(text)}:
        # Sphinx gives those of code further options.
        if _CODE.fullmatch(name) or directives.directive(name, en, document)[0] is None:
            directives.register_directive(name, Contents)
